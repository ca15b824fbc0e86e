//! Any bytes as the texts of a capture, which is read, judged, compared and printed.
//!
//! The input has the form of a folder's files: `=== NAME` on its own line, then the text. As for a folder, the name or
//! else the text determines the kind of file. The text before the first name is a check to compare with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::{
    cluster::Key,
    diagnosis::triage::{Facts, Saved, Scope, compare, triage},
    node::capture::{Capture, Kind, recognise},
    report::{Paint, check},
    time::Timestamp,
};

fuzz_target!(|input: &[u8]| {
    let service = (input.len() % 2 == 1).then(|| Key::new("shop", "cart"));
    let input = String::from_utf8_lossy(input);
    let mut parts = input.split("=== ");
    let saved = parts.next().and_then(|text| Saved::parse(text).ok());
    let mut capture = Capture {
        node: Some("worker-1".into()),
        taken: Some(Timestamp::from_unix_secs(1_795_217_105)),
        ..Capture::default()
    };
    for part in parts {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        if let Some(kind) = Kind::named(name).or_else(|| recognise(name, text)) {
            capture.put(kind, name, text.to_owned());
        }
    }
    let facts = Facts::read(&capture);
    let mut report = triage(&facts, &Scope { service });
    report.facts = facts.digest();
    if let Some(saved) = &saved {
        report.differences = compare::differences(&report, saved);
    }
    assert!(check::is_clean(&check::text(&report, Paint(false), true)));
    assert!(check::document(&report).is_ok());
    // A saved check reads back without differences.
    let again = Saved::parse(&check::record(&report).unwrap()).unwrap();
    assert_eq!(compare::differences(&report, &again), []);
});
