//! Runs the scenarios one after the other, each on a repaired node, and in parallel those that need no node.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

use crate::{
    boot,
    console::{self, Of, Outcome},
    dataplane::Variant,
    expect::Incomplete,
    matrix::{Cell, Skip},
    scenarios::{self, Scenario, Shares},
    score::Scores,
    world::{Stage, Watch, World},
};

/// Runs the scenarios whose name contains `filter`, or one of several names separated by commas (`=NAME` is exactly
/// that one). Without a filter it runs those of the kernel that `lab.share` names, and of them the part that `lab.part`
/// names. Returns whether all passed.
pub(super) fn run(world: &World, filter: &str, watch: Watch) -> Result<bool> {
    let is_chosen = |name: &str| {
        filter
            .split(',')
            .any(|part| part.strip_prefix('=').map_or(name.contains(part), |whole| name == whole))
    };
    let kernel = boot::kernel_argument("lab.share");
    // All modes and families of a scenario, or those that the kernel runs by default.
    let variants = |scenario: &Scenario| match &kernel {
        Some(kernel) => scenario.shares.of(kernel, scenario.variants),
        None => scenario.variants.to_vec(),
    };
    // One mode after the other, so that the node's rules change as seldom as possible.
    let mut chosen: Vec<(&Scenario, Variant)> = scenarios::ALL
        .iter()
        .flat_map(|scenario| variants(scenario).into_iter().map(move |variant| (scenario, variant)))
        .filter(|(scenario, variant)| is_chosen(&scenario.name_in(*variant)))
        .collect();
    chosen.sort_by_key(|(_, variant)| variant.mode);
    let watched = watch != Watch::Nobody;
    let is_shared = |shares: Shares| {
        kernel.as_ref().is_none_or(|kernel| !shares.of(kernel, &[Variant::DEFAULT]).is_empty())
    };
    let beside: Vec<_> = scenarios::BESIDE
        .iter()
        .filter(|scenario| watched && is_chosen(scenario.name) && is_shared(scenario.shares))
        .collect();
    if chosen.is_empty() && beside.is_empty() {
        let all = scenarios::ALL
            .iter()
            .flat_map(|scenario| variants(scenario).into_iter().map(|variant| scenario.name_in(variant)));
        let names: Vec<String> =
            all.chain(scenarios::BESIDE.iter().map(|scenario| scenario.name.to_owned())).collect();
        let of_kernel = kernel.map_or_else(String::new, |kernel| format!(" of those that {kernel} runs"));
        bail!("no scenario's name{of_kernel} is chosen by {filter:?}; there are {}", names.join(", "));
    }
    let part = Part::named(boot::kernel_argument("lab.part").as_deref())?;
    let (chosen, beside) = (part.of(chosen), part.of(beside));
    console::matrix(&Cell::all());
    let waiting: Vec<_> = beside
        .into_iter()
        .map(|scenario| {
            let started = Instant::now();
            let play = move || {
                let played = (scenario.story)();
                (played, started.elapsed())
            };
            (scenario.name, thread::spawn(play))
        })
        .collect();
    let mut all_passed = true;
    for (scenario, variant) in chosen {
        let name = scenario.name_in(variant);
        let started = Instant::now();
        let play = || match Stage::set(world, watch, variant) {
            Ok(stage) => stage.play(&name, scenario.story),
            Err(error) => (Err(error), Scores::default()),
        };
        let (mut played, mut scores) = play();
        if let Err(error) = &played
            && let Some(incomplete) = error.downcast_ref::<Incomplete>()
        {
            console::print(format!("{name}: {incomplete}"));
            console::print(format!("{name}: once more, with all events"));
            (played, scores) = play();
        }
        let of =
            Of { name: &name, mode: Some(variant.mode), cells: &scenario.cells(variant), scores: &scores };
        all_passed &= report(of, started.elapsed(), played);
    }
    for (name, story) in waiting {
        let (played, took) =
            story.join().unwrap_or_else(|_| (Err(anyhow!("its thread panicked")), Duration::ZERO));
        let of = Of { name, mode: None, cells: &[], scores: &Scores::default() };
        all_passed &= report(of, took, played);
    }
    Ok(all_passed)
}

/// The part of one guest, where several guests share the scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// From 0.
    number: usize,
    parts: usize,
}

impl Part {
    /// Parses `lab.part`: `2/3` is the second of three. Without it the part is everything.
    fn named(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else { return Ok(Self { number: 0, parts: 1 }) };
        let read = || {
            let (number, parts) = text.split_once('/')?;
            let (number, parts) = (number.parse::<usize>().ok()?.checked_sub(1)?, parts.parse().ok()?);
            (number < parts).then_some(Self { number, parts })
        };
        read().ok_or_else(|| anyhow!("lab.part={text} is not a part like 2/3"))
    }

    /// Deals the scenarios in turn, so that each part has some of every mode and of every neighbouring group.
    fn of<T>(self, all: Vec<T>) -> Vec<T> {
        all.into_iter().skip(self.number).step_by(self.parts).collect()
    }
}

/// Prints the result of a scenario. Returns false if it failed.
fn report(of: Of<'_>, took: Duration, played: Result<()>) -> bool {
    let outcome = match played {
        Ok(()) => Outcome::Passed,
        Err(error) => match error.downcast::<Skip>() {
            Ok(Skip(missing)) => Outcome::Skipped(missing),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        },
    };
    console::scenario(of, &outcome, took);
    !matches!(outcome, Outcome::Failed(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_is_in_exactly_one_part() {
        let all: Vec<u32> = (0..11).collect();
        let part = |text| Part::named(Some(text)).unwrap().of(all.clone());
        let mut dealt: Vec<u32> = ["1/3", "2/3", "3/3"].into_iter().flat_map(part).collect();
        assert_eq!(part("2/3"), [1, 4, 7, 10]);
        dealt.sort_unstable();
        assert_eq!(dealt, all);
        assert_eq!(Part::named(None).unwrap().of(all.clone()), all);
        for text in ["", "0/2", "3/2", "1", "a/b", "1/0"] {
            assert!(Part::named(Some(text)).is_err(), "{text:?}");
        }
    }
}
