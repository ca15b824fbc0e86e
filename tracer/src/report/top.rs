//! `viptrace top`: Services by failures, the latest failed flows below, and the evidence of one of them.
//!
//! Owns the state of the screen and the meaning of keys. `draw.rs` lays the state out, `screen.rs` owns the terminal.

mod draw;
mod screen;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use crate::{
    report::{
        Form, Status,
        printer::{OutputError, Paint, Printer},
        row::{FlowKey, Row},
    },
    session::{Counts, Folded, Judged, Summary},
    text::safe,
    verdict::{ServiceRef, Verdict},
};
use screen::Screen;

/// The latest failed flows that are kept; earlier ones are only counted.
const MAX_FLOWS: usize = 1000;
/// The most messages that wait for the end of the screen, and the most warnings that it can show.
const MAX_MESSAGES: usize = 100;
/// How often the keys are read, and the most often that the screen is drawn.
const INTERVAL: Duration = Duration::from_millis(100);
/// The lines of one page up or down.
const PAGE: isize = 10;

/// The screen, from the first flow to the user's `q`.
pub(super) struct Top {
    state: State,
    screen: Option<Screen>,
    paint: Paint,
    /// Each message is a request to stop.
    stop: mpsc::Sender<()>,
    is_over: bool,
    due: Instant,
    /// Messages that the screen has covered.
    covered: Vec<Message>,
}

impl std::fmt::Debug for Top {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Top").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Top {
    pub(super) fn new(form: Form, title: String, paint: Paint, stop: mpsc::Sender<()>) -> Self {
        Self {
            state: State::new(form, title),
            screen: None,
            paint,
            stop,
            is_over: false,
            due: Instant::now(),
            covered: Vec::new(),
        }
    }

    pub(super) fn show(&mut self, judged: &Judged) {
        self.state.add(judged);
    }

    pub(super) fn fold(&mut self, folded: &Folded) {
        self.state.summary.add_folded(folded);
        self.state.dirty = true;
    }

    pub(super) fn status(&mut self, status: Status) {
        self.state.dirty |= self.state.status != status;
        self.state.status = status;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.due)
    }

    /// Obeys the keys and draws. The screen begins with the first call, so that Ctrl-C is a signal until then.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), OutputError> {
        if self.is_over || now < self.due {
            return Ok(());
        }
        self.due = now + INTERVAL;
        if self.screen.is_none() {
            self.screen = Some(Screen::enter()?);
        }
        let Some(screen) = &mut self.screen else { return Ok(()) };
        for event in screen::events()? {
            self.state.dirty = true;
            if event.is_some_and(|key| self.state.press(key) == Wish::Quit) {
                self.close();
                // A full channel has a request already.
                let _ = self.stop.try_send(());
                return Ok(());
            }
        }
        if std::mem::take(&mut self.state.dirty) {
            screen.draw(&mut self.state, self.paint)?;
        }
        Ok(())
    }

    /// Whether the user has ended it.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// No flow comes any more.
    pub(super) fn played(&mut self) {
        self.state.is_played = true;
        self.state.dirty = true;
    }

    /// Takes a message if the screen would cover it. A warning from before the screen is on it as well.
    pub(super) fn message(&mut self, text: &str, weight: Weight) -> bool {
        let is_covered = self.screen.is_some();
        if is_covered || weight == Weight::Warning {
            self.state.message(text, weight);
        }
        if is_covered && self.covered.len() < MAX_MESSAGES {
            self.covered.push(Message { weight, text: text.to_owned() });
        }
        is_covered
    }

    /// Gives the terminal back: from now on Ctrl-C is a signal again.
    fn close(&mut self) {
        (self.screen, self.is_over) = (None, true);
    }

    /// Ends the screen. Returns the messages that it covered.
    pub(super) fn leave(&mut self) -> Vec<Message> {
        self.close();
        std::mem::take(&mut self.covered)
    }
}

/// What a message is about: a limit of the verdicts, or anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Note,
    Warning,
}

impl Weight {
    pub(super) fn print(self, text: &str, printer: &mut Printer) {
        match self {
            Self::Note => printer.note(text),
            Self::Warning => printer.warn(text),
        }
    }
}

/// A message that the screen has covered.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) weight: Weight,
    pub(super) text: String,
}

/// The result of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Continue,
    Quit,
}

/// The list that the arrow keys move in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Focus {
    Services,
    #[default]
    Flows,
}

/// A failed flow.
struct Failed {
    key: FlowKey,
    row: Row,
    verdict: Arc<Verdict>,
}

/// The evidence of one flow, over the whole screen.
struct Evidence {
    verdict: Arc<Verdict>,
    /// The lines above the first visible one.
    scrolled: usize,
}

/// Everything that the screen shows.
struct State {
    form: Form,
    title: String,
    summary: Summary,
    /// The latest last.
    flows: VecDeque<Failed>,
    status: Status,
    /// The latest last, each once.
    warnings: VecDeque<String>,
    /// The latest one.
    note: Option<String>,
    /// The end of a recording: no flow comes any more.
    is_played: bool,
    focus: Focus,
    /// The selected Service; the first without one.
    service: Option<ServiceRef>,
    /// The selected flow; the latest without one.
    flow: Option<FlowKey>,
    /// Only flows of this Service are listed.
    only: Option<ServiceRef>,
    evidence: Option<Evidence>,
    dirty: bool,
}

impl State {
    fn new(form: Form, title: String) -> Self {
        Self {
            form,
            title,
            summary: Summary::default(),
            flows: VecDeque::new(),
            status: Status::default(),
            warnings: VecDeque::new(),
            note: None,
            is_played: false,
            focus: Focus::default(),
            service: None,
            flow: None,
            only: None,
            evidence: None,
            dirty: true,
        }
    }

    fn add(&mut self, judged: &Judged) {
        let Judged { verdict, before, connect_time, .. } = judged;
        self.summary.add(judged);
        self.dirty = true;
        let key = FlowKey::new(&verdict.flow);
        if before.is_some() {
            self.flows.retain(|flow| flow.key != key);
        }
        if !verdict.has_failed() {
            return;
        }
        let row = Row::new(verdict, *connect_time, false);
        self.flows.push_back(Failed { key, row, verdict: Arc::new(verdict.clone()) });
        if self.flows.len() > MAX_FLOWS {
            self.flows.pop_front();
        }
    }

    fn message(&mut self, text: &str, weight: Weight) {
        let text = safe(text).into_owned();
        self.dirty = true;
        if weight == Weight::Note {
            self.note = Some(text);
            return;
        }
        self.warnings.retain(|known| *known != text);
        self.warnings.push_back(text);
        if self.warnings.len() > MAX_MESSAGES {
            self.warnings.pop_front();
        }
    }

    /// The messages, the most important first: the latest warning, those before it, and the latest note.
    fn messages(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().rev().chain(&self.note).map(String::as_str)
    }

    /// The Services, those with the most failed flows first.
    fn services(&self) -> Vec<(&ServiceRef, Counts)> {
        let mut services: Vec<_> = self.summary.services().collect();
        services.sort_by(|(name, counts), (other_name, other)| {
            let failed = |counts: &Counts| Reverse((counts.faults, counts.unexplained));
            failed(counts).cmp(&failed(other)).then_with(|| name.cmp(other_name))
        });
        services
    }

    /// The listed flows, the latest first.
    fn listed(&self) -> impl Iterator<Item = &Failed> {
        let is_meant =
            |flow: &&Failed| self.only.is_none() || flow.verdict.service.as_ref() == self.only.as_ref();
        self.flows.iter().rev().filter(is_meant)
    }

    fn selected_service(&self, services: &[(&ServiceRef, Counts)]) -> usize {
        let selected = |service: &ServiceRef| services.iter().position(|(other, _)| *other == service);
        self.service.as_ref().and_then(selected).unwrap_or_default()
    }

    fn selected_flow(&self) -> usize {
        let selected = |key: &FlowKey| self.listed().position(|flow| flow.key == *key);
        self.flow.as_ref().and_then(selected).unwrap_or_default()
    }

    fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Continue;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::PageDown | KeyCode::Char(' ') => self.step(PAGE),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Tab | KeyCode::BackTab if self.evidence.is_none() => {
                self.focus = match self.focus {
                    Focus::Services => Focus::Flows,
                    Focus::Flows => Focus::Services,
                };
            }
            KeyCode::Enter => self.open(),
            KeyCode::Esc | KeyCode::Backspace if self.evidence.take().is_none() => {
                (self.only, self.flow) = (None, None);
            }
            _ => {}
        }
        Wish::Continue
    }

    /// Moves the selection, or the evidence.
    fn step(&mut self, by: isize) {
        let moved = |at: usize, len: usize| at.saturating_add_signed(by).min(len.saturating_sub(1));
        if let Some(evidence) = &mut self.evidence {
            // `draw` bounds it by the number of lines.
            evidence.scrolled = evidence.scrolled.saturating_add_signed(by);
            return;
        }
        match self.focus {
            Focus::Services => {
                let services = self.services();
                let at = moved(self.selected_service(&services), services.len());
                self.service = services.get(at).map(|(service, _)| (*service).clone());
            }
            Focus::Flows => {
                let at = moved(self.selected_flow(), self.listed().count());
                // At the top, the selection follows the latest flow.
                let flow = self.listed().nth(at).filter(|_| at > 0).map(|flow| flow.key.clone());
                self.flow = flow;
            }
        }
    }

    /// Opens what is selected: the flows of a Service, or the evidence of a flow.
    fn open(&mut self) {
        if self.evidence.take().is_some() {
            return;
        }
        match self.focus {
            Focus::Services => {
                let services = self.services();
                self.only = services.get(self.selected_service(&services)).map(|(name, _)| (*name).clone());
                (self.focus, self.flow) = (Focus::Flows, None);
            }
            Focus::Flows => {
                let verdict = self.listed().nth(self.selected_flow()).map(|flow| Arc::clone(&flow.verdict));
                self.evidence = verdict.map(|verdict| Evidence { verdict, scrolled: 0 });
            }
        }
    }
}
