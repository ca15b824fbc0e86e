//! Programs whose arguments have types: fentry, fexit and typed tracepoints.
//!
//! Owns their links, which open beside the loading of the next programs: the kernel waits some 10 ms for each (on 6.1).

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    thread::{self, JoinHandle},
};

use aya::maps::Map;
use tracer_ebpf::{Attach, HookSpec, map};

use super::{Attached, Attachment, report_attached};
use crate::kernel::{
    bpf::{self, Place},
    loader::{self, Link, LoadError},
    plan::FentryTarget,
};

/// The loaded programs of a hook, by name: all are attached or none, because copies rely on each other.
pub(super) type Loaded = Vec<(&'static str, OwnedFd)>;

type Links = Vec<(&'static str, Link)>;

/// A hook whose links a thread of its own opens.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) spec_index: usize,
    pub(super) spec: &'static HookSpec,
    links: io::Result<JoinHandle<Result<Links, LoadError>>>,
}

impl Opening {
    pub(super) fn begin(spec_index: usize, spec: &'static HookSpec, programs: Loaded) -> Self {
        let open = move || {
            programs.into_iter().map(|(name, program)| Ok((name, loader::open(name, program)?))).collect()
        };
        let links = thread::Builder::new().name("attach".to_owned()).spawn(open);
        Self { spec_index, spec, links }
    }

    /// Waits for the links.
    pub(super) fn links(self) -> Result<Links, LoadError> {
        let ended = self.links.map_err(LoadError::Thread)?.join();
        ended.unwrap_or_else(|_| Err(LoadError::Thread(io::Error::other("it ended too early"))))
    }
}

impl Attached {
    /// Loads the programs of a hook for its function or tracepoint.
    pub(super) fn load_fentry(
        &mut self,
        spec: &HookSpec,
        target: &FentryTarget,
        preempts: bool,
    ) -> Result<Loaded, String> {
        let (names, place) = match &spec.attach {
            Attach::TypedTracepoint { typed, .. } => {
                let program = self.loader.load_tracepoint(typed, target.function);
                return Ok(vec![(typed, program.map_err(|error| error.to_string())?)]);
            }
            Attach::Entry { fentry: Some(copies), .. } => {
                if let Some(chosen) = copies.chosen {
                    self.load_chosen(spec, chosen, target)?;
                }
                (copies.attached(preempts), Place::Entry)
            }
            Attach::Return { fexit, .. } => (std::slice::from_ref(fexit), Place::Exit),
            _ => return Err(format!("{} has no fentry program", spec.symbol)),
        };
        let load = |name: &&'static str| Ok((*name, self.loader.load_function(name, place, target)?));
        names.iter().map(load).collect::<Result<_, LoadError>>().map_err(|error| error.to_string())
    }

    /// Loads the program with which the chosen copy continues, where the copies find it.
    fn load_chosen(
        &mut self,
        spec: &HookSpec,
        name: &'static str,
        target: &FentryTarget,
    ) -> Result<(), String> {
        let program =
            self.loader.load_function(name, Place::Entry, target).map_err(|error| error.to_string())?;
        let Some(Map::ProgramArray(chosen)) = self.maps.get(map::CHOSEN) else {
            return Err(format!("the eBPF object has no map {}", map::CHOSEN));
        };
        bpf::fill(chosen.fd().as_fd(), &program.as_raw_fd().to_ne_bytes())
            .map_err(|error| format!("the kernel refused {name} as the end of another program: {error}"))?;
        report_attached(spec.symbol, name, program.as_fd());
        self.programs.push((spec.hook, Attachment { program, link: None }));
        Ok(())
    }
}
