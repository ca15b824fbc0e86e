//! `viptrace explain-pcap`: the verdicts of recordings for the connections of a packet capture.
//!
//! Owns the order of the work and the messages about what is missing. The pipeline judges.

use std::{fs::File, path::Path};

use anyhow::Context as _;

use crate::{
    cli::{Outcome, ResultExt as _, args::ExplainPcapOptions, recording_file, replay},
    pcap::{self, Assembly, Ending, Recorded, Tuples},
    recording::{Player, Sightings, is_irregular},
    report::{Output, Printer, pcap as report, record_line, yaml_document},
    session::Detail,
    text::{count, safe},
};

/// Explains the capture.
pub(super) fn run(options: &ExplainPcapOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let (tuples, _) = read(&options.capture, pcap::tuples)?;
    let mut is_complete = true;
    let mut recorded = Recorded::default();
    for path in &options.recordings {
        let lacks = add(&mut recorded, path, &tuples)?;
        is_complete &= lacks.is_empty();
        for lack in lacks {
            printer.warn(&format!("{}: {lack}", path.display()));
        }
    }
    let mut assembly = Assembly::new(&recorded);
    let (ending, name) =
        read(&options.capture, |source, length| pcap::read(source, length, |packet| assembly.add(packet)))?;
    let mut lacks = ending.missing.iter().cloned().collect::<Vec<_>>();
    is_complete &= lacks.is_empty();
    lacks.extend(tuples.remarks());
    lacks.extend(assembly.remark());
    lacks.extend(recorded.remark());
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
    let file = File::open(path).with_context(what)?;
    let length = file.metadata().with_context(what)?.len();
    let result = read(file, length).with_context(what)?;
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), std::ffi::OsStr::to_string_lossy);
    Ok((result, safe(&name).into_owned()))
}

/// Adds a recording. Returns its missing parts.
fn add(recorded: &mut Recorded, path: &Path, tuples: &Tuples) -> anyhow::Result<Vec<String>> {
    let what = || format!("cannot read the recording {}", path.display());
    let mut sightings = Sightings::open(recording_file(path, what)?).with_context(what)?;
    let name = path.display().to_string();
    recorded.add_sightings(&name, tuples, &mut sightings).with_context(what)?;
    let mut player = Player::open(recording_file(path, what)?, Detail::All).with_context(what)?;
    let end = recorded.add_verdicts(tuples, &mut player).with_context(what)?;
    Ok(replay::lacks(&player, end.is_some()))
}
