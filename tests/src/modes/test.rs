//! The scenarios, one after the other, each on a mended node.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{
    console::{self, Outcome},
    scenarios,
    world::{Stage, Watch, World},
};

/// Runs those whose name holds `filter`, or one of several separated by commas; returns whether all passed.
pub(super) fn run(world: &World, filter: &str, watch: Watch) -> Result<bool> {
    let is_chosen = |name: &str| filter.split(',').any(|part| name.contains(part));
    let chosen: Vec<_> = scenarios::ALL.iter().filter(|scenario| is_chosen(scenario.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = scenarios::ALL.iter().map(|scenario| scenario.name).collect();
        bail!("no scenario's name holds {filter:?}; there are {}", names.join(", "));
    }
    let mut all_passed = true;
    for scenario in chosen {
        let started = Instant::now();
        let played = Stage::set(world, watch).and_then(|stage| stage.play(scenario.name, scenario.story));
        let outcome = match played {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        all_passed &= outcome == Outcome::Passed;
        console::scenario(scenario.name, &outcome, started.elapsed());
    }
    Ok(all_passed)
}
