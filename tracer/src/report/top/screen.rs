//! The terminal of `viptrace top`: its own screen and keys, given back however the program ends.

use std::{io, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEvent},
};

use super::{State, draw};
use crate::report::printer::Paint;

/// The most events of one call: a pasted text cannot hold up the trace.
const MAX_EVENTS: usize = 64;

/// The terminal while it shows nothing else.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Switches to a screen of its own, on which keys are read at once. Also gives it back if the program panics.
    pub(super) fn enter() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }

    pub(super) fn draw(&mut self, state: &mut State, paint: Paint) -> io::Result<()> {
        self.0.draw(|frame| draw::screen(frame, state, paint)).map(drop)
    }
}

/// The events that wait: keys, and `None` for another that asks for a new drawing.
pub(super) fn events() -> io::Result<Vec<Option<KeyEvent>>> {
    let mut events = Vec::new();
    while events.len() < MAX_EVENTS && event::poll(Duration::ZERO)? {
        events.push(match event::read()? {
            Event::Key(key) => Some(key),
            _ => None,
        });
    }
    Ok(events)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = ratatui::try_restore();
    }
}
