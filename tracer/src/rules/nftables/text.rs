//! Parses the text output of `nft list ruleset` and `nft list table` (nft(8)).
//!
//! Converts each rule into statements of the JSON format, so that both formats have one meaning. Unknown statements are
//! kept as unknown.

use std::collections::VecDeque;

use serde_json::Value;

use super::{MAX_ITEMS, Wanted, expression, hook, is_ours, kept_name};
use crate::{
    net::Family,
    parse::ParseError,
    rules::{Base, Rule, Ruleset, Set, Table, Writer, step::Steps},
};

mod statement;
mod tokens;

use statement::Statement;
use tokens::{Token, tokens};

pub(super) fn parse(text: &str, wanted: Wanted) -> Result<Ruleset, ParseError> {
    let tokens = tokens(text);
    let count = |wanted: Token<'_>| tokens.iter().filter(|token| **token == wanted).count();
    if count(Token::Open) > count(Token::Close) {
        return Err(ParseError::new(text.lines().count(), "the listing ends within a table"));
    }
    if !text.trim().is_empty() && !tokens.iter().any(|token| token.is("table")) {
        return Err(ParseError::nothing_in(text, "a listing of nft"));
    }
    let mut reader = Reader { tokens, wanted, ruleset: Ruleset::default(), items: 0 };
    while let Some(token) = reader.tokens.pop_front() {
        if token.is("table") {
            reader.table();
        }
    }
    Ok(reader.ruleset)
}

struct Reader<'a> {
    tokens: VecDeque<Token<'a>>,
    wanted: Wanted,
    ruleset: Ruleset,
    items: usize,
}

impl<'a> Reader<'a> {
    /// Reads a table after the word `table`.
    fn table(&mut self) {
        let (Some(family), Some(name)) = (self.word(), self.word()) else { return self.skip_block() };
        let families = self.wanted.families(family, name);
        let Some((last, others)) = families.split_last() else { return self.skip_block() };
        let name = kept_name(family, name);
        // A table of two families is read twice.
        for kept in others {
            let all = self.tokens.clone();
            self.block(*kept, &name);
            self.tokens = all;
        }
        self.block(*last, &name);
    }

    /// Reads the block of a table.
    fn block(&mut self, family: Family, name: &str) {
        if !self.open() {
            return;
        }
        let mut table = Table::new(Writer::Nftables, family, name);
        let mut is_dormant = false;
        while let Some(token) = self.tokens.pop_front() {
            match token {
                Token::Close => break,
                Token::Word("set" | "map") => self.set(&mut table),
                Token::Word("chain") => self.chain(&mut table, is_dormant),
                Token::Word("flags") => is_dormant |= self.line().iter().any(|token| token.is("dormant")),
                Token::Open => self.skip_rest(),
                _ => {}
            }
        }
        self.ruleset.tables.push(table);
    }

    fn word(&mut self) -> Option<&'a str> {
        match self.tokens.front() {
            Some(Token::Word(word) | Token::Quoted(word)) => {
                let word = *word;
                self.tokens.pop_front();
                Some(word)
            }
            _ => None,
        }
    }

    fn open(&mut self) -> bool {
        let open = self.tokens.front() == Some(&Token::Open);
        if open {
            self.tokens.pop_front();
        }
        open
    }

    /// Skips to the end of the next block.
    fn skip_block(&mut self) {
        while let Some(token) = self.tokens.pop_front() {
            if token == Token::Open {
                return self.skip_rest();
            }
        }
    }

    /// Skips to the end of the current block.
    fn skip_rest(&mut self) {
        let mut depth = 1_usize;
        while let Some(token) = self.tokens.pop_front() {
            match token {
                Token::Open => depth += 1,
                Token::Close => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Reads to the end of the line or of the block, without that token. Text in braces belongs to the line.
    fn line(&mut self) -> VecDeque<Token<'a>> {
        let mut line = VecDeque::new();
        let mut depth = 0_usize;
        while let Some(token) = self.tokens.front() {
            match token {
                Token::Open => depth += 1,
                Token::Close | Token::End if depth == 0 => break,
                Token::Close => depth -= 1,
                _ => {}
            }
            line.extend(self.tokens.pop_front().filter(|token| *token != Token::End));
        }
        line
    }

    /// The next line of the current block; `None` at its end, which is consumed.
    fn next_line(&mut self) -> Option<VecDeque<Token<'a>>> {
        loop {
            match self.tokens.front()? {
                Token::Close => {
                    self.tokens.pop_front();
                    return None;
                }
                Token::End => {
                    self.tokens.pop_front();
                }
                _ => return Some(self.line()),
            }
        }
    }

    fn set(&mut self, table: &mut Table) {
        let name = self.word().unwrap_or_default();
        if !self.open() {
            return;
        }
        let mut set = Set::new(name);
        while let Some(mut line) = self.next_line() {
            match line.pop_front() {
                Some(Token::Word("timeout")) if is_ours(&table.name) => {
                    set.timeout = line.pop_front().and_then(|token| token.text()).and_then(duration);
                }
                Some(Token::Word("flags"))
                    if is_ours(&table.name) && line.iter().any(|token| token.is("timeout")) =>
                {
                    set.timeout = set.timeout.or(Some(u32::MAX));
                }
                Some(Token::Word("elements")) if set.timeout.is_none() => {
                    line.retain(|token| !token.is("="));
                    let parsed = Statement { tokens: line }.block();
                    for element in parsed {
                        self.items += 1;
                        match element.and_then(|element| expression::element(&(&element).into())) {
                            Some((key, verdict)) if self.items <= MAX_ITEMS => set.insert(key, verdict),
                            _ => {
                                set.partial = true;
                                self.ruleset
                                    .odd(|| format!("nftables: an element of {name} is not understood"));
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        table.add_set(set);
    }

    /// The kernel does not enter a chain of a dormant table.
    fn chain(&mut self, table: &mut Table, is_dormant: bool) {
        let name = self.word().unwrap_or_default();
        if !self.open() {
            return;
        }
        if let Some(chain) = table.chain_mut(name) {
            chain.base = None;
        }
        while let Some(mut line) = self.next_line() {
            match line.front() {
                Some(Token::Word("type")) => {
                    if let Some(chain) = table.chain_mut(name) {
                        chain.base = base(&line).filter(|_| !is_dormant);
                    }
                }
                Some(Token::Word("policy")) => {
                    let drops = line.get(1).is_some_and(|token| token.is("drop"));
                    if let Some(base) = table.chain_mut(name).and_then(|chain| chain.base.as_mut()) {
                        base.drops = drops;
                    }
                }
                // The chain's own comment. A rule never begins with one.
                Some(Token::Word("comment")) | None => {}
                Some(_) => {
                    self.items += 1;
                    if self.items > MAX_ITEMS {
                        self.ruleset.odd(|| format!("nftables: more than {MAX_ITEMS} rules"));
                        continue;
                    }
                    let (mut steps, mut comment) = (Steps::new(), None);
                    let mut statements = Statement { tokens: std::mem::take(&mut line) };
                    while let Some(statement) = statements.next() {
                        match statement.get("comment").and_then(Value::as_str) {
                            Some(text) => comment = Some(text.into()),
                            None => expression::statement(&(&statement).into(), table, &mut steps),
                        }
                    }
                    table.add_rule(name, Rule::new(steps, comment));
                }
            }
        }
    }
}

/// `type nat hook prerouting priority dstnat + 5`
fn base(line: &VecDeque<Token<'_>>) -> Option<Base> {
    let words = line.iter().filter_map(Token::text).collect::<Vec<_>>();
    let after = |word: &str| {
        let position = words.iter().position(|known| *known == word)?;
        words.get(position + 1..)
    };
    let hook = hook(after("hook")?.first()?)?;
    let priority = match after("priority").unwrap_or_default() {
        [name, sign, number, ..] if *sign == "+" || *sign == "-" => {
            let number: i32 = number.parse().ok()?;
            named(name)?.saturating_add(if *sign == "-" { number.saturating_neg() } else { number })
        }
        [name, ..] => named(name)?,
        [] => 0,
    };
    Some(Base { nat: words.get(1) == Some(&"nat"), hook, priority, drops: false })
}

/// nft(8), "Standard priority names".
fn named(name: &str) -> Option<i32> {
    Some(match name {
        "raw" => -300,
        "mangle" => -150,
        "dstnat" => -100,
        "filter" => 0,
        "security" => 50,
        "srcnat" => 100,
        number => number.parse().ok()?,
    })
}

/// `3h`, `1d2h3m4s`, in seconds.
fn duration(text: &str) -> Option<u32> {
    let mut seconds = 0_u32;
    let mut number = None::<u32>;
    for character in text.chars() {
        if let Some(digit) = character.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
            continue;
        }
        let unit = match character {
            'd' => 86_400,
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        seconds = seconds.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    number.is_none().then_some(seconds)
}
