//! Parses the output of `nft -j list ruleset` and `nft -j list table` (libnftables-json(5)).
//!
//! Parses one object at a time: the listing of a large cluster is tens of megabytes, and a tree of it would take ten
//! times as much.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json_borrow::Value;

use super::{MAX_ITEMS, Wanted, expression, is_ours, kept_name};
use crate::{
    parse::ParseError,
    rules::{Base, Rule, Ruleset, Set, Table, Writer, step::Steps},
};

pub(super) fn parse(listing: &str, wanted: Wanted) -> Result<Ruleset, ParseError> {
    let mut deserializer = serde_json::Deserializer::from_str(listing);
    let mut reader = Reader { wanted, ruleset: Ruleset::default(), items: 0, dormant: Vec::new() };
    loop {
        deserializer.deserialize_map(Listing(&mut reader))?;
        if deserializer.end().is_ok() {
            return Ok(reader.ruleset);
        }
    }
}

struct Reader {
    wanted: Wanted,
    ruleset: Ruleset,
    items: usize,
    /// The tables whose chains the kernel does not enter, by family and name.
    dormant: Vec<(String, String)>,
}

/// `{"nftables": [ … ]}`
struct Listing<'r>(&'r mut Reader);

impl<'de> Visitor<'de> for Listing<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the member `nftables`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "nftables" {
                found = true;
                map.next_value_seed(Items(&mut *self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(serde::de::Error::custom("there is no member `nftables`")) }
    }
}

struct Items<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of nftables objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Item(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

/// A string, borrowed from the listing if it has no escapes: serde does not borrow a `Cow` inside an `Option`.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Reads one object. The name of its only member is its kind. The content is used at once: an object is large, and
/// moving it costs as much as reading it.
struct Item<'r>(&'r mut Reader);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum ItemKind {
    Table,
    Chain,
    Set,
    Map,
    Rule,
    Element,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an nftables object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(kind) = map.next_key()? {
            if matches!(kind, ItemKind::Other) {
                map.next_value::<IgnoredAny>()?;
            } else {
                self.0.item(&kind, &map.next_value()?);
            }
        }
        Ok(())
    }
}

/// The members of all kinds.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 't, 't: 'de"))]
struct Object<'t> {
    #[serde(borrow)]
    family: Option<Text<'t>>,
    #[serde(borrow)]
    table: Option<Text<'t>>,
    #[serde(borrow)]
    name: Option<Text<'t>>,
    #[serde(borrow)]
    chain: Option<Text<'t>>,
    #[serde(rename = "type", borrow)]
    kind: Option<Value<'t>>,
    #[serde(borrow)]
    hook: Option<Text<'t>>,
    #[serde(borrow)]
    prio: Option<Value<'t>>,
    #[serde(borrow)]
    policy: Option<Text<'t>>,
    #[serde(borrow)]
    comment: Option<Text<'t>>,
    timeout: Option<u32>,
    #[serde(borrow)]
    flags: Option<Value<'t>>,
    #[serde(borrow)]
    expr: Option<Vec<Value<'t>>>,
    #[serde(borrow)]
    elem: Option<Vec<Value<'t>>>,
}

impl Reader {
    fn item(&mut self, kind: &ItemKind, object: &Object<'_>) {
        self.items += 1;
        if self.items > MAX_ITEMS {
            self.ruleset.odd(|| format!("nftables: more than {MAX_ITEMS} objects"));
            return;
        }
        let name = if matches!(kind, ItemKind::Table) { &object.name } else { &object.table };
        let (Some(family), Some(name)) = (object.family.as_deref(), name.as_deref()) else { return };
        let own = kept_name(family, name);
        let is_dormant = match kind {
            ItemKind::Table if has_flag(object, "dormant") => {
                self.dormant.push((family.to_owned(), name.to_owned()));
                true
            }
            _ => self.dormant.iter().any(|(of, table)| of == family && table == name),
        };
        for kept in self.wanted.families(family, name) {
            let of = |table: &Table| table.family == *kept && *table.name == *own;
            let position = self.ruleset.tables.iter().position(of).unwrap_or_else(|| {
                let table = Table::new(Writer::Nftables, *kept, &own);
                self.ruleset.tables.push(table);
                self.ruleset.tables.len() - 1
            });
            let Some(table) = self.ruleset.tables.get_mut(position) else { continue };
            let odd = match kind {
                ItemKind::Table | ItemKind::Other => 0,
                ItemKind::Chain => chain(table, object, is_dormant),
                ItemKind::Set | ItemKind::Map => set(table, object),
                ItemKind::Element => elements(table, object),
                ItemKind::Rule => rule(table, object),
            };
            if odd > 0 {
                let name = object.name.as_deref().unwrap_or_default();
                self.ruleset.odd(|| format!("nftables: {odd} elements of {name} are not understood"));
            }
        }
    }
}

/// Whether the object has this flag, alone or among others.
fn has_flag(object: &Object<'_>, wanted: &str) -> bool {
    match &object.flags {
        Some(Value::Str(flag)) => flag == wanted,
        Some(Value::Array(flags)) => flags.iter().any(|flag| flag.as_str() == Some(wanted)),
        _ => false,
    }
}

fn chain(table: &mut Table, object: &Object<'_>, is_dormant: bool) -> u64 {
    let base = base(object).filter(|_| !is_dormant);
    if let Some(chain) = object.name.as_deref().and_then(|name| table.chain_mut(name)) {
        chain.base = base;
    }
    0
}

fn set(table: &mut Table, object: &Object<'_>) -> u64 {
    let Some(name) = object.name.as_deref() else { return 0 };
    let mut set = Set::new(name);
    let dynamic = has_flag(object, "timeout");
    set.timeout = object.timeout.or(dynamic.then_some(u32::MAX)).filter(|_| is_ours(&table.name));
    table.add_set(set);
    elements(table, object)
}

/// Returns the number of elements that are not understood.
fn elements(table: &mut Table, object: &Object<'_>) -> u64 {
    let Some(name) = object.name.as_deref() else { return 0 };
    let mut odd = 0_u64;
    let mut set = Set::new(name);
    // Elements that packets added to an affinity set are not configuration.
    if table.set(name).is_some_and(|set| set.timeout.is_some()) {
        return 0;
    }
    for element in object.elem.as_deref().unwrap_or_default() {
        match expression::element(element) {
            Some((key, verdict)) => set.insert(key, verdict),
            None => odd += 1,
        }
    }
    set.partial = odd > 0;
    table.add_set(set);
    odd
}

fn rule(table: &mut Table, object: &Object<'_>) -> u64 {
    let Some(name) = object.chain.as_deref() else { return 0 };
    let mut steps = Steps::new();
    for statement in object.expr.iter().flatten() {
        expression::statement(statement, table, &mut steps);
    }
    let comment = object.comment.as_deref().map(Into::into);
    table.add_rule(name, Rule::new(steps, comment));
    0
}

fn base(object: &Object<'_>) -> Option<Base> {
    let hook = super::hook(object.hook.as_deref()?)?;
    let nat = object.kind.as_ref().is_some_and(|kind| kind.as_str() == Some("nat"));
    let priority = object.prio.as_ref().and_then(Value::as_i64).and_then(|prio| i32::try_from(prio).ok());
    let drops = object.policy.as_deref() == Some("drop");
    Some(Base { nat, hook, priority: priority.unwrap_or_default(), drops })
}
