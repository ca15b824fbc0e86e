//! Any bytes as one text of a capture, of each kind; the whole is read, judged and printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::{
    node::capture::{Capture, Kind},
    report::{Paint, check},
    triage::{Facts, Scope, triage},
};

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (kind, bytes) = input;
    let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
    let mut capture = Capture { node: Some("worker-1".into()), ..Capture::default() };
    capture.put(Kind::ProxyMode, "mode", "iptables".into());
    capture.put(kind, "fuzz", String::from_utf8_lossy(&bytes).into_owned());
    let report = triage(&Facts::read(&capture), &Scope::default());
    assert!(check::is_clean(&check::text(&report, Paint(false), true)));
    assert!(check::record(&report).is_ok() && check::document(&report).is_ok());
});
