//! One way of a packet through the chains: its present state, and its next rule.
//!
//! Owns the limits of depth and length. The machine applies the rules.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use crate::rules::{
    HookPoint, Name, Writer,
    mark::Marks,
    walk::{Link, Trail, machine::Stop},
};

/// The greatest depth of nested chains, the same as the kernel's (16).
pub(in crate::rules::walk) const MAX_DEPTH: usize = 16;
/// The most chains and maps on the way of one packet. The kernel refuses chains that form a loop; a damaged list may
/// contain them.
pub(in crate::rules::walk) const MAX_TRAIL: usize = 64;

/// The packet on one of its ways. `T` is what an observer remembers of it.
#[derive(Clone, Debug)]
pub(super) struct State<T> {
    pub(super) weight: f64,
    pub(super) source: IpAddr,
    pub(super) destination: SocketAddr,
    pub(super) translated: bool,
    pub(super) marks: Marks,
    pub(super) masquerade: bool,
    /// The mark that a packet from this source would have.
    pub(super) own: Option<(IpAddr, u32)>,
    pub(super) remembers: Option<Name>,
    pub(super) sticky: Option<(Name, Option<u32>)>,
    /// The chains that it is in.
    pub(super) trail: Trail,
    /// The chains that it was in when it was translated or stopped.
    pub(super) decided: Trail,
    /// The hook that it is in.
    pub(super) hook: HookPoint,
    /// The address to which the node sent it, before a translation: the device in OUTPUT is that of the first route.
    pub(super) sent_to: IpAddr,
    pub(super) seen: T,
}

impl<T> State<T> {
    /// Whether conntrack ignores it, and so NAT.
    pub(super) const fn is_untracked(&self) -> bool {
        self.marks.connection.is_none()
    }
}

/// The chain and rule at which a way continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub(super) chain: usize,
    pub(super) rule: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Way<T> {
    pub(super) state: State<T>,
    /// The table whose chains it is in.
    pub(super) table: usize,
    pub(super) frames: [Frame; MAX_DEPTH],
    pub(super) depth: usize,
    /// The next rule, and the step in it.
    pub(super) resume: Option<(usize, usize)>,
    /// It has left the chains already.
    pub(super) stopped: Option<Stop>,
}

impl<T> Way<T> {
    /// At the first rule of a base chain.
    pub(super) fn new(mut state: State<T>, table: usize, chain: usize) -> Self {
        state.trail = None;
        let mut way =
            Self { state, table, frames: Default::default(), depth: 0, resume: None, stopped: None };
        way.call(chain);
        way
    }

    pub(super) fn top(&mut self) -> Option<&mut Frame> {
        let top = self.depth.checked_sub(1)?;
        self.frames.get_mut(top)
    }

    /// Returns to the caller.
    pub(super) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        while let Some(link) = self.state.trail.take_if(|link| link.depth > self.depth) {
            self.state.trail.clone_from(&link.before);
        }
    }

    /// Adds a chain or map to the trail; returns whether there was room.
    pub(super) fn pass(&mut self, name: &Name, writer: Writer, depth: usize) -> bool {
        let before = self.state.trail.take();
        let length = before.as_ref().map_or(0, |link| link.length) + 1;
        if length > MAX_TRAIL {
            self.state.trail = before;
            return false;
        }
        self.state.trail = Some(Rc::new(Link { name: name.clone(), writer, depth, length, before }));
        true
    }

    /// Returns whether there was room.
    pub(super) fn call(&mut self, chain: usize) -> bool {
        let Some(frame) = self.frames.get_mut(self.depth) else { return false };
        *frame = Frame { chain, rule: 0 };
        self.depth += 1;
        true
    }
}
