//! Checks rules of docs/style.md for every user-facing text: times have at most milliseconds, and nouns agree with
//! their counts.

use std::{collections::BTreeSet, fs};

use viptrace::report::{Paint, check};

use crate::{commands::captures, recording_corpus};

/// The words that break a rule.
fn faults(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split([' ', '\n']).collect();
    let times = words.iter().filter(|word| is_too_fine(word)).map(|word| (*word).to_owned());
    let counts = words
        .windows(2)
        .filter(|pair| {
            let [number, noun] = pair else { return false };
            let noun = noun.trim_end_matches(|character: char| !character.is_alphanumeric());
            let is_plural = noun.len() > 3 && noun.ends_with('s') && !noun.ends_with("ss");
            number.trim_start_matches('(') == "1" && is_plural
        })
        .map(|pair| pair.join(" "));
    times.chain(counts).collect()
}

/// A time of day or a number of seconds with more than three decimals.
fn is_too_fine(word: &str) -> bool {
    let Some((whole, fraction)) = word.rsplit_once('.') else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = fraction.bytes().take_while(u8::is_ascii_digit).count();
    let last = whole.rsplit([':', '(', 'T']).next().unwrap_or(whole);
    decimals > 3 && is_number(last)
}

#[test]
fn what_breaks_a_rule_is_found() {
    assert_eq!(faults("first at 1120 23:29:18.128799, last"), ["23:29:18.128799,"]);
    assert_eq!(
        faults("2026-11-21T07:00:56.304345939Z 0.12345 s"),
        ["2026-11-21T07:00:56.304345939Z", "0.12345"]
    );
    assert_eq!(faults("has 1 endpoints; (1 flows)"), ["1 endpoints;", "(1 flows)"]);
    assert_eq!(faults("23:29:18.128 1 endpoint, 11 endpoints, 0.82 ms, 10.96.0.1000, 1 address"), [""; 0]);
}

#[test]
fn verdicts_checks_and_outputs_keep_to_the_rules() {
    let mut found = BTreeSet::new();
    for verdict in recording_corpus::verdicts() {
        let evidence = verdict.evidence.iter().chain(&verdict.against).map(|piece| &piece.content);
        let advice = [&verdict.mitigation.immediate, &verdict.mitigation.long_term];
        for text in evidence.chain(&verdict.unseen).chain(advice).chain([&verdict.root_cause]) {
            found.extend(faults(text));
        }
    }
    for capture in captures() {
        found.extend(faults(&check::text(&capture.check(), Paint(false), true)));
    }
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/snapshots");
    let is_record = |name: &str| ["_as_json", "_as_yaml", "schemas"].iter().any(|part| name.contains(part));
    for entry in fs::read_dir(snapshots).unwrap() {
        let path = entry.unwrap().path();
        if !is_record(path.to_str().unwrap()) {
            let text = fs::read_to_string(&path).unwrap();
            // A page shows records, too.
            let lines = text.lines().filter(|line| !line.contains("<pre><code>{&#34;time&#34;"));
            found.extend(faults(&lines.collect::<Vec<_>>().join("\n")));
        }
    }
    assert_eq!(found, BTreeSet::new());
}
