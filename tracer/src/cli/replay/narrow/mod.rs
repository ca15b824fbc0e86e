//! Which part of a recording a query needs.
//!
//! Owns the addresses by which a query finds its flows, and the proof that they suffice: the part is played once without
//! output. A verdict that rests on other flows asks for these, and a flow for the addresses that it has after NAT. Then
//! the part grows and is played again, or everything is read. So a verdict is that of the whole recording.

mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::{
    cli::{
        selection::{Selection, Span},
        target::Target,
    },
    diagnosis::OtherFlows,
    incident::Timeline,
    recording::{IndexState, Part, Reading, Tape, UnusableFile, Wanted},
    text::count,
    time::Timestamp,
};

/// How often a part may grow.
const MAX_ROUNDS: usize = 6;

/// A part, and a note for the user.
type Chosen = (Part, Option<String>);

/// The part of the timeline that the user's selection needs in the times to be played, and the reason if it is all although
/// the user asked for less.
pub(super) fn part(timeline: &Timeline, selection: &Selection, within: Span) -> Result<Chosen, UnusableFile> {
    let [track] = timeline.tracks() else { return Ok((Part::Whole, None)) };
    let tape = track.tape();
    let has_addresses = selection.flow.is_some() || selection.client.is_some() || selection.target.is_some();
    if !has_addresses && within.from == Timestamp::MIN {
        return Ok((Part::Whole, None));
    }
    match tape.index() {
        IndexState::Usable => {}
        IndexState::Damaged => return Ok(whole("its index is damaged")),
        IndexState::Missing => return Ok((Part::Whole, None)),
    }
    if !has_addresses {
        return Ok((Part::Time, None));
    }
    let Some(mut wanted) = addresses(tape, selection)? else { return Ok((Part::Whole, None)) };
    for _ in 0..MAX_ROUNDS {
        let (mut grown, others) = try_out(tape, &wanted, within)?;
        if grown.has_overflown() {
            return Ok(whole("these flows have too many addresses"));
        }
        let mut has_grown = grown.addresses() > wanted.addresses();
        for flows in others {
            has_grown |= match flows {
                OtherFlows::To(address) => grown.add_socket(address),
                OtherFlows::Between(client, to) => !grown.covers(client, to) && grown.add_ip(client),
                OtherFlows::Any => {
                    return Ok(whole("a verdict on these flows rests on flows to other Services"));
                }
            };
        }
        if !has_grown {
            // With them go the blocks that have none of these flows.
            return Ok((Part::Flows(Box::new(grown)), None));
        }
        grown.forget_barren();
        wanted = grown;
    }
    Ok(whole("verdicts on these flows rest on many others"))
}

fn whole(why: &str) -> Chosen {
    (Part::Whole, Some(format!("the whole recording is read: {why}")))
}

/// The addresses of the narrowest condition; `None` if the index cannot find its flows.
fn addresses(tape: &Tape, selection: &Selection) -> Result<Option<Wanted>, UnusableFile> {
    if let Some(flow) = &selection.flow {
        let mut wanted = Wanted::default();
        wanted.add_socket(flow.client);
        return Ok(Some(wanted));
    }
    match selection.client.as_ref().or(selection.target.as_ref()) {
        Some(Target::Address { ip, port }) => {
            let mut wanted = Wanted::default();
            match port {
                Some(port) => wanted.add_socket((*ip, *port).into()),
                None => wanted.add_ip(*ip),
            };
            Ok(Some(wanted))
        }
        Some(Target::Pod { namespace, name }) => names::of_pod(tape, namespace, name),
        Some(Target::Service { namespace, name }) => names::of_service(tape, namespace, name),
        None => Ok(None),
    }
}

/// Plays the part. Returns the addresses with those learned, and the other flows that verdicts rest on.
fn try_out(
    tape: &Tape,
    wanted: &Wanted,
    within: Span,
) -> Result<(Wanted, BTreeSet<OtherFlows>), UnusableFile> {
    let mut tape = tape.again();
    tape.open(|player| {
        player.judge_all();
        player.recorded().note_other_flows();
        if within.from > Timestamp::MIN {
            player.skip_until(within.from);
        }
        // A file that cannot be read fails in the first step.
        let _ = player.narrow(Part::Flows(Box::new(wanted.clone())));
    });
    while let Some((_, now)) = tape.step()? {
        if now > within.to {
            break;
        }
    }
    let Some(player) = tape.player_mut() else { return Ok((wanted.clone(), BTreeSet::new())) };
    let others = player.recorded().take_other_flows();
    Ok((player.wanted().unwrap_or(wanted).clone(), others))
}

/// How much was read, and which figures are only of this part.
pub(super) fn note(reading: Reading) -> Option<String> {
    let Reading { bytes, total_bytes, unpacked, passed, is_index_unusable, barren: _ } = reading;
    if is_index_unusable {
        return Some("the recording's index is damaged: what it covers was read without it".to_owned());
    }
    (passed > 0).then(|| {
        // Of a small file, the index and its blocks are read in pieces that overlap.
        let of_bytes = if bytes < total_bytes {
            format!(" and {bytes} of {}", count(total_bytes, "byte"))
        } else {
            String::new()
        };
        format!(
            "{} of {}{of_bytes} were read: the index shows that the others have none of these flows; the summary's counts \
             of flows without a verdict and of suppressed events are of this part",
            unpacked,
            count(unpacked + passed, "block"),
        )
    })
}
