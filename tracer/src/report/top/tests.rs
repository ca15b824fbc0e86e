//! The screen of `viptrace top`: what it shows, and what keys do.

use std::fmt::Write as _;

use ratatui::{Terminal, backend::TestBackend, style::Modifier};

use super::*;
use crate::{
    class::Class,
    report::fixture::{self, snapshot},
    time::Timestamp,
};

fn state() -> State {
    let mut state = State::new(Form { each: true, ..Form::default() }, "every Service".into());
    for port in 1..=4 {
        let mut verdict = fixture::fault();
        verdict.flow.client.set_port(port);
        verdict.time = Timestamp::from_unix_secs(u64::from(port));
        if port == 4 {
            verdict.class = Class::Unknown;
            verdict.root_cause = "unknown — the SYN was not answered; no rule explains it".into();
            verdict.service = Some(ServiceRef { name: "cart".into(), ..verdict.service.clone().unwrap() });
        }
        state.add(&fixture::judged(verdict));
    }
    let mut healthy = fixture::ok(9);
    healthy.service = Some(ServiceRef { name: "web".into(), ..healthy.service.clone().unwrap() });
    state.add(&fixture::judged(healthy));
    state.status.counts = state.summary.counts();
    state.status.metadata_age = Some(Duration::from_secs(70));
    state
}

/// The screen's text, with the inverted lines marked.
fn text(state: &mut State, (columns, lines): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw::screen(frame, state, Paint(false))).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for line in 0..lines {
        let cells: Vec<_> = (0..columns).map(|column| &buffer[(column, line)]).collect();
        let marked = cells.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED));
        let words: String = cells.iter().map(|cell| cell.symbol()).collect();
        let _ = writeln!(text, "{}{}", if marked { '>' } else { ' ' }, words.trim_end());
    }
    text
}

fn press(state: &mut State, codes: &[KeyCode]) {
    for code in codes {
        assert_eq!(state.press(KeyEvent::from(*code)), Wish::Continue);
    }
}

const SIZE: (u16, u16) = (80, 24);

#[test]
fn the_services_the_latest_flows_and_the_evidence() {
    let mut state = state();
    snapshot("top", &text(&mut state, SIZE));
    press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
    snapshot("top_evidence", &text(&mut state, SIZE));
}

#[test]
fn a_service_opens_its_flows_and_escape_closes_them() {
    let mut state = state();
    press(&mut state, &[KeyCode::Tab, KeyCode::Down, KeyCode::Enter]);
    assert_eq!(state.only.as_ref().map(|service| &*service.name), Some("cart"));
    assert_eq!(state.listed().count(), 1);
    assert!(text(&mut state, SIZE).contains("LATEST FAILED FLOWS of shop/cart:http"));
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(state.listed().count(), 4);
}

#[test]
fn the_selection_stays_on_its_flow_and_follows_the_latest_at_the_top() {
    let mut state = state();
    let selected =
        |state: &State| state.listed().nth(state.selected_flow()).unwrap().verdict.flow.client.port();
    assert_eq!(selected(&state), 4);
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(selected(&state), 3);
    let mut verdict = fixture::fault();
    verdict.flow.client.set_port(5);
    state.add(&fixture::judged(verdict));
    assert_eq!(selected(&state), 3);
    press(&mut state, &[KeyCode::Home]);
    assert_eq!(selected(&state), 5);
    press(&mut state, &[KeyCode::End, KeyCode::PageDown]);
    assert_eq!(selected(&state), 1);
}

#[test]
fn a_revised_flow_leaves_the_list() {
    let mut state = state();
    let mut verdict = fixture::ok(3);
    let before = Some(Arc::new(fixture::fault().key()));
    verdict.time = Timestamp::from_unix_secs(9);
    state.add(&Judged { before, ..fixture::judged(verdict) });
    assert!(state.listed().all(|flow| flow.verdict.flow.client.port() != 3));
}

#[test]
fn only_the_latest_flows_are_kept() {
    let mut state = state();
    for port in 1..=u16::try_from(MAX_FLOWS).unwrap() + 5 {
        let mut verdict = fixture::fault();
        verdict.flow.client.set_port(port);
        state.add(&fixture::judged(verdict));
    }
    assert_eq!(state.flows.len(), MAX_FLOWS);
    assert_eq!(state.services()[0].1.faults, 1_008);
}

#[test]
fn a_warning_stays_when_a_note_follows_it() {
    let mut state = state();
    for (weight, text) in [
        (Weight::Warning, "node1.viptrace: it was cut off at 2026-11-23T21:20:11.670Z"),
        (
            Weight::Warning,
            "nothing of service/shop/crat is in the recording: there is no service/shop/crat in it",
        ),
        (Weight::Note, "hint: a damaged file may be an incomplete copy"),
    ] {
        state.message(text, weight);
    }
    let drawn = text(&mut state, SIZE);
    for words in ["nothing of service/shop/crat", "there is no service/shop/crat", "cut off at", "hint: a"] {
        assert!(drawn.contains(words), "{words}: {drawn}");
    }
    // Two lines are left for messages: the latest warning has them.
    let drawn = text(&mut state, (60, 8));
    assert!(drawn.contains("no service/shop/crat") && !drawn.contains("hint:"), "{drawn}");
    for height in 5..40 {
        let drawn = text(&mut state, (90, height));
        for words in ["3 faults", "nothing of service", "q quit"] {
            assert!(height < 6 || drawn.contains(words), "{height} {words}: {drawn}");
        }
    }
}

#[test]
fn messages_without_room_are_counted_and_each_warning_is_shown_once() {
    let mut state = state();
    for number in [1, 2, 3, 4, 5, 3, 5, 6] {
        state.message(&format!("warning {number}"), Weight::Warning);
    }
    let drawn = text(&mut state, SIZE);
    let at = |words: &str| drawn.find(words).unwrap_or_else(|| panic!("{words}: {drawn}"));
    assert!(at("warning 6") < at("warning 5") && at("warning 5") < at("warning 3"), "{drawn}");
    assert!(drawn.contains("… 3 more messages") && drawn.matches("warning 5").count() == 1, "{drawn}");
    for number in 0..2 * MAX_MESSAGES {
        state.message(&format!("w{number}"), Weight::Warning);
    }
    assert_eq!(state.warnings.len(), MAX_MESSAGES);
}

#[test]
fn a_recording_that_was_played_waits_for_no_flow() {
    let mut state = State::new(Form::default(), String::new());
    assert!(text(&mut state, SIZE).contains("no flow of a Service yet"));
    state.is_played = true;
    let drawn = text(&mut state, SIZE);
    assert!(drawn.contains("no flow of a Service") && !drawn.contains("yet"), "{drawn}");
}

#[test]
fn any_size_any_key() {
    let keys = [KeyCode::Up, KeyCode::Down, KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home, KeyCode::End]
        .into_iter()
        .chain([KeyCode::Enter, KeyCode::Tab, KeyCode::Esc, KeyCode::Char('x'), KeyCode::Enter]);
    let keys: Vec<_> = keys.collect();
    let mut warned = state();
    for number in 0..9 {
        warned.message(
            &format!("warning {number} of many words, so that it has several lines"),
            Weight::Warning,
        );
    }
    for mut state in [state(), warned, State::new(Form::default(), String::new())] {
        for number in 0..100 {
            press(&mut state, &[keys[number * 7 % keys.len()]]);
            for size in [(1, 1), (2, 3), (20, 5), (80, 24), (300, 100)] {
                text(&mut state, size);
            }
        }
    }
}

#[test]
fn q_and_control_c_end_it() {
    let mut state = state();
    assert_eq!(state.press(KeyEvent::from(KeyCode::Char('c'))), Wish::Continue);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(control_c), Wish::Quit);
    assert_eq!(state.press(KeyEvent::from(KeyCode::Char('q'))), Wish::Quit);
}
