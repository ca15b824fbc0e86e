//! `viptrace explain-pcap`: the verdicts of recordings for the connections of a packet capture.
//!
//! Owns the order of the work and the messages about what is missing. The pipeline judges.

use std::{fs::File, path::Path};

use anyhow::Context as _;

use crate::{
    cli::{Outcome, ResultExt as _, args::ExplainPcapOptions, replay},
    pcap::{self, Assembly, Ending, Recorded, Tuples},
    recording::{Tape, Tapes, is_irregular},
    report::{Output, Printer, pcap as report, record_line, yaml_document},
    session::Detail,
    text::{count, safe},
};

/// Explains the capture.
pub(super) fn run(options: &ExplainPcapOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let (tuples, _) = read(&options.capture, pcap::tuples)?;
    let (mut recorded, lacks) = recorded(options, &tuples, &mut printer)?;
    let mut is_complete = lacks.is_empty();
    for lack in lacks {
        printer.warn(&lack);
    }
    let (mut assembly, mut ending, name) = assemble(options, &recorded)?;
    if recorded.follow_clock_of(&assembly) {
        (assembly, ending, _) = assemble(options, &recorded)?;
    }
    for note in recorded.clock_notes() {
        printer.note(&safe(&note));
    }
    if let Some(note) = tuples.note() {
        printer.note(&format!("{name}: {note}"));
    }
    let mut lacks = ending.lacks();
    lacks.extend(tuples.remarks());
    lacks.extend(assembly.remark());
    lacks.extend(recorded.remark());
    lacks.extend(pcap::all_outside(&assembly, &recorded));
    is_complete &= lacks.is_empty();
    for lack in lacks {
        printer.warn(&format!("{name}: {lack}"));
    }
    let flows = pcap::explain(&assembly, &recorded, &ending);
    show(options, &flows, &ending, &name, &mut printer)?;
    Ok(match flows.iter().filter_map(|flow| flow.verdict.as_ref()).any(crate::verdict::Verdict::is_fault) {
        true => Outcome::Faults,
        false if is_complete => Outcome::Clean,
        false => Outcome::Incomplete,
    })
}

/// What the recordings have for these tuples, and what is missing from them.
fn recorded(
    options: &ExplainPcapOptions,
    tuples: &Tuples,
    printer: &mut Printer,
) -> anyhow::Result<(Recorded, Vec<String>)> {
    let paths = &options.recordings;
    let found = Tapes::find(paths, Detail::All).map_err(|file| replay::no_file(file, paths))?;
    if found.tapes.is_empty() {
        return Err(replay::nothing_in(&found.skipped, paths));
    }
    for copy in &found.copies {
        printer.note(&safe(&copy.to_string()));
    }
    let mut lacks = replay::unusable(&found.skipped, found.skipped_more);
    let mut recorded = Recorded::default();
    for mut tape in found.tapes {
        let name = name(&tape);
        recorded.add(name.clone(), tuples, &mut tape)?;
        let missing = replay::missing(&tape, false);
        // Of a single file each has its name.
        let place = if tape.files() > 1 { format!("{}: ", safe(&name)) } else { String::new() };
        lacks.extend(missing.into_iter().map(|lack| format!("{place}{lack}")));
    }
    Ok((recorded, lacks))
}

/// A trace's only file, or its node with the first of its files.
fn name(tape: &Tape) -> String {
    let first = tape.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
    match tape.files() {
        0 | 1 => first,
        files => {
            let node = tape.header().node_name.as_deref().unwrap_or("an unnamed node");
            format!("{node} ({}, the first is {first})", count(files as u64, "file"))
        }
    }
}

/// Reads the packets of the capture. Returns its connections, its end, and the file's name.
fn assemble(options: &ExplainPcapOptions, recorded: &Recorded) -> anyhow::Result<(Assembly, Ending, String)> {
    let mut assembly = Assembly::default();
    let (ending, name) = read(&options.capture, |source, length| {
        pcap::read(source, length, |packet| assembly.add(packet, recorded))
    })?;
    Ok((assembly, ending, name))
}

fn show(
    options: &ExplainPcapOptions,
    flows: &[pcap::ExplainedFlow],
    ending: &Ending,
    name: &str,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let is_text = matches!(options.output, Output::Table | Output::Wide);
    if is_text {
        let packets = count(ending.packets, "packet");
        printer.text(&format!("{packets} in {name}; {}\n", report::summary(flows)))?;
    }
    for flow in flows {
        match options.output {
            Output::Table | Output::Wide => {
                let text = report::text(flow, options.output == Output::Wide, printer.paint());
                printer.text(&format!("\n{text}"))?;
            }
            Output::Json => printer.data(&record_line(flow)?)?,
            Output::Yaml => printer.data(&yaml_document(flow)?)?,
        }
    }
    printer.flush()?;
    Ok(())
}

/// Opens the capture and reads it once. Returns the result and the file's name.
fn read<T>(
    path: &Path,
    read: impl FnOnce(File, u64) -> Result<T, pcap::CaptureError>,
) -> anyhow::Result<(T, String)> {
    let what = || format!("cannot read the capture {}", path.display());
    if is_irregular(path) {
        return Err(anyhow::anyhow!("{}: it is not a regular file", what()))
            .hint(|| "it is read twice: store the capture in a file first".to_owned());
    }
    let file = File::open(path)
        .with_context(what)
        .hint(|| "check the path; `tcpdump -i any -w FILE` makes a capture".to_owned())?;
    let length = file.metadata().with_context(what)?.len();
    let result = read(file, length).with_context(what)?;
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), std::ffi::OsStr::to_string_lossy);
    Ok((result, safe(&name).into_owned()))
}
