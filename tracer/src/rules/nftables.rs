//! Parses kube-proxy's nftables table in the output of `nft -j list …` and `nft list …`.
//!
//! Pure and tolerant: only the table `kube-proxy` is kept, and an unknown statement or condition becomes a step that
//! cannot be judged. A text that is not an nft listing, or only the beginning of one, is an error. nft lists the rules
//! that iptables wrote through `nf_tables` without their matches; [`crate::rules::iptables`] reads those.

use crate::{
    parse::ParseError,
    rules::{HookPoint, NFTABLES_TABLE, Ruleset},
};

mod expression;
mod json;
mod text;

/// The most elements, chains and rules of one listing. Further ones count as oddities.
const MAX_ITEMS: usize = 8_000_000;

/// Parses either format, or several listings one after the other. JSON is recognised by its first character.
pub fn parse(listing: &str) -> Result<Ruleset, ParseError> {
    let is_json = listing.trim_ascii_start().starts_with('{');
    let mut ruleset = if is_json { json::parse(listing)? } else { text::parse(listing)? };
    for table in &mut ruleset.tables {
        table.seal();
    }
    Ok(ruleset)
}

fn is_ours(table: &str) -> bool {
    table == NFTABLES_TABLE
}

fn hook(name: &str) -> Option<HookPoint> {
    Some(match name {
        "prerouting" => HookPoint::Prerouting,
        "input" => HookPoint::Input,
        "forward" => HookPoint::Forward,
        "output" => HookPoint::Output,
        "postrouting" => HookPoint::Postrouting,
        _ => return None,
    })
}
