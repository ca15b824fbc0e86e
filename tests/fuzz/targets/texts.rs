//! Any text as the inputs other than rules and captures: a trace's target, an HTTP answer, `/proc` files, a saved
//! check, a manifest, a file of unknown kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::{
    cli::target::Target,
    diagnosis::triage::{CheckReport, Facts, Saved, Scope, compare, triage},
    node::{
        ProxyMode,
        capture::{Manifest, recognise},
        http,
        interfaces::{self, Interfaces},
        procfs,
        routes::Routes,
    },
};

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match kind % 6 {
        0 => target(&text),
        1 => {
            if let Some(response) = http::parse_response(bytes) {
                assert!(response.body.len() < bytes.len());
                let _ = ProxyMode::parse(&String::from_utf8_lossy(&response.body));
            }
        }
        2 => {
            let (trie, inet6) = text.split_once('\0').unwrap_or((&text, &text));
            let _ = procfs::parse_addresses(trie, inet6);
            let _ = Routes::parse(&Routes::lines_of(trie, inet6));
            let _ = Routes::parse(&text);
            let names = Interfaces::parse(&interfaces::names_to_text(&text, std::path::Path::new("/nowhere"))).unwrap();
            assert!(names.iter().count() <= text.lines().count());
        }
        3 => {
            if let Ok(saved) = Saved::parse(&text) {
                let _ = compare::differences(&empty(), &saved);
            }
        }
        4 => {
            if let Some(manifest) = Manifest::parse(&text) {
                let written = serde_json::to_string(&manifest).unwrap();
                assert_eq!(Manifest::parse(&written), Some(manifest));
            }
        }
        _ => {
            let (name, text) = text.split_once('\n').unwrap_or(("", &text));
            let _ = recognise(name, text);
        }
    }
});

/// An accepted target reads back from its text.
fn target(text: &str) {
    let (text, namespace) = match text.split_once('\n') {
        Some((text, namespace)) => (text, Some(namespace)),
        None => (text, None),
    };
    if let Ok(target) = Target::parse(text, namespace) {
        assert_eq!(Target::parse(&target.to_string(), None), Ok(target));
    }
}

fn empty() -> CheckReport {
    triage(&Facts::read(&Default::default()), &Scope::default())
}
