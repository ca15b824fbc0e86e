//! Parses kube-proxy's nftables table in the output of `nft -j list …` and `nft list …`, or the other programs' tables.
//!
//! Pure and tolerant: an unknown statement or condition becomes a step that cannot be judged. A text that is not an nft
//! listing, or only the beginning of one, is an error. nft lists the rules that iptables wrote through `nf_tables` without
//! their matches; [`crate::rules::iptables`] reads those.

use std::borrow::Cow;

use crate::{
    net::Family,
    parse::ParseError,
    rules::{HookPoint, NFTABLES_TABLE, Ruleset},
};

mod expression;
mod foreign;
mod json;
mod text;

/// The most elements, chains and rules of one listing. Further ones count as oddities.
const MAX_ITEMS: usize = 8_000_000;

/// Parses kube-proxy's tables in either format, or several listings one after the other. JSON is recognised by its first
/// character.
pub fn parse(listing: &str) -> Result<Ruleset, ParseError> {
    parse_tables(listing, Wanted::KubeProxy)
}

/// As [`parse`], for the tables of all other programs. A table of the family `inet` becomes one table for each family,
/// named `inet NAME`.
pub fn parse_others(listing: &str) -> Result<Ruleset, ParseError> {
    if has_others(listing) { parse_tables(listing, Wanted::Others) } else { Ok(Ruleset::default()) }
}

/// The tables to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    KubeProxy,
    Others,
}

impl Wanted {
    /// The families for which this table is kept.
    fn families(self, family: &str, table: &str) -> &'static [Family] {
        match (family, self) {
            (_, Self::KubeProxy) if !is_ours(table) => &[],
            (_, Self::Others) if is_ours(table) => &[],
            ("ip", _) => &[Family::Ipv4],
            ("ip6", _) => &[Family::Ipv6],
            ("inet", Self::Others) => &Family::ALL,
            _ => &[],
        }
    }
}

/// The name by which a table is kept: tables of different families can have one name.
fn kept_name<'t>(family: &str, table: &'t str) -> Cow<'t, str> {
    if family == "inet" { Cow::Owned(format!("inet {table}")) } else { Cow::Borrowed(table) }
}

/// Whether a listing names a table other than kube-proxy's. Looks for the declarations only: a listing of kube-proxy's
/// rules has tens of megabytes.
fn has_others(listing: &str) -> bool {
    let name_at = |at: usize| {
        let rest = listing.get(at..).unwrap_or_default();
        let end = rest.find(['}', '{', '\n']).unwrap_or(rest.len());
        let mut words = rest.get(..end).unwrap_or_default().split([' ', '"', ',', ':']);
        !words.any(|word| word == NFTABLES_TABLE)
    };
    let json = ["{\"table\": {", "{\"table\":{"];
    let mut declared =
        json.iter().flat_map(|word| listing.match_indices(word).map(|(at, _)| at + word.len()));
    let mut lines = listing.match_indices("table ").map(|(at, _)| at);
    declared.any(name_at)
        || !listing.trim_ascii_start().starts_with('{')
            && lines.any(|at| (at == 0 || listing.as_bytes().get(at - 1) == Some(&b'\n')) && name_at(at))
}

fn parse_tables(listing: &str, wanted: Wanted) -> Result<Ruleset, ParseError> {
    let is_json = listing.trim_ascii_start().starts_with('{');
    let mut ruleset = if is_json { json::parse(listing, wanted)? } else { text::parse(listing, wanted)? };
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
