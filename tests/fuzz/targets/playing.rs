//! Plays a recording as `viptrace replay` does, and discards the output.

use std::{
    io::{self, Cursor},
    time::Instant,
};

use viptrace::{
    recording::{Player, Step},
    report::{Form, Output, Printer, Report, Verbosity, View},
    session::{Detail, Judgements},
};

pub fn play(bytes: Vec<u8>, detail: Detail) {
    let length = bytes.len() as u64;
    let Ok(mut player) = Player::open(Cursor::new(bytes), detail) else { return };
    let output = if detail == Detail::All { Output::Json } else { Output::Wide };
    let printer = Printer::to(Box::new(io::sink()), Box::new(io::sink()), Verbosity::Normal);
    let mut report = Report::new(Form { output, view: View::All, ..Form::default() }, printer);
    while let Ok(Some(step)) = player.step() {
        if let Step::Judged { judgements, .. } = step {
            show(&mut report, &judgements);
        }
    }
    while let Some(judgements) = player.cut_off() {
        show(&mut report, &judgements);
    }
    let (damage, count) = player.damage();
    assert!(count >= damage.len() as u64);
    assert!(damage.iter().all(|damage| damage.offset <= length && damage.skipped <= length - damage.offset));
}

fn show(report: &mut Report, judgements: &Judgements) {
    let now = Instant::now();
    for judged in &judgements.judged {
        report.show(judged, now).unwrap();
    }
    for folded in &judgements.folded {
        report.fold(folded, now);
    }
    report.tick(now).unwrap();
}
