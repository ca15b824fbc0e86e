//! `nft list ruleset` and `nft list table`, as text (nft(8)).
//!
//! Brings each rule into the JSON format's statements, so that both formats have one meaning. Statements that are not
//! known are passed on as such.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{ITEMS_MAX, expression, hook, is_ours};
use crate::node::ruleset::{Base, Family, Rule, Ruleset, Set, Table, Writer};

mod tokens;

use tokens::{Token, tokens};

pub(super) fn parse(text: &str) -> Ruleset {
    let mut reader = Reader { tokens: tokens(text), ruleset: Ruleset::default(), items: 0 };
    while let Some(token) = reader.tokens.pop_front() {
        if token.is("table") {
            reader.table();
        }
    }
    reader.ruleset
}

struct Reader<'a> {
    tokens: VecDeque<Token<'a>>,
    ruleset: Ruleset,
    items: usize,
}

impl<'a> Reader<'a> {
    /// After `table`.
    fn table(&mut self) {
        let (family, name) = (self.word(), self.word());
        let family = match family {
            Some("ip") => Family::Ipv4,
            Some("ip6") => Family::Ipv6,
            _ => return self.skip_block(),
        };
        let Some(name) = name.filter(|name| is_ours(name)) else { return self.skip_block() };
        if !self.open() {
            return;
        }
        let mut table = Table::new(Writer::Nftables, family, name);
        while let Some(token) = self.tokens.pop_front() {
            match token {
                Token::Close => break,
                Token::Word("set" | "map") => self.set(&mut table),
                Token::Word("chain") => self.chain(&mut table),
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

    /// Up to the end of the next block.
    fn skip_block(&mut self) {
        while let Some(token) = self.tokens.pop_front() {
            if token == Token::Open {
                return self.skip_rest();
            }
        }
    }

    /// Up to the end of the block that is open.
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

    /// Up to the end of the line, or of the block: that token stays. What is in braces belongs to the line.
    fn line(&mut self) -> VecDeque<Token<'a>> {
        let mut line = VecDeque::new();
        let mut depth = 0_usize;
        while let Some(token) = self.tokens.front() {
            match token {
                Token::Open => depth += 1,
                Token::Close if depth == 0 => break,
                Token::Close => depth -= 1,
                Token::End if depth == 0 => break,
                _ => {}
            }
            line.extend(self.tokens.pop_front().filter(|token| *token != Token::End));
        }
        line
    }

    fn set(&mut self, table: &mut Table) {
        let name = self.word().unwrap_or_default();
        if !self.open() {
            return;
        }
        let mut set = Set::new(name);
        loop {
            match self.tokens.front() {
                None => break,
                Some(Token::Close) => {
                    self.tokens.pop_front();
                    break;
                }
                Some(Token::End) => {
                    self.tokens.pop_front();
                    continue;
                }
                Some(_) => {}
            }
            let mut line = self.line();
            match line.pop_front() {
                Some(Token::Word("timeout")) => {
                    set.timeout = line.pop_front().and_then(|token| token.text()).and_then(duration);
                }
                Some(Token::Word("flags")) => {
                    if line.iter().any(|token| token.is("timeout")) {
                        set.timeout = set.timeout.or(Some(u32::MAX));
                    }
                }
                Some(Token::Word("elements")) if set.timeout.is_none() => {
                    line.retain(|token| !token.is("="));
                    let parsed = Statement { tokens: line }.block();
                    for element in parsed {
                        self.items += 1;
                        match element.and_then(|element| expression::element(&element)) {
                            Some((key, verdict)) if self.items <= ITEMS_MAX => set.insert(key, verdict),
                            _ => self
                                .ruleset
                                .odd(|| format!("nftables: an element of {name} is not understood")),
                        }
                    }
                }
                _ => {}
            }
        }
        table.add_set(set);
    }

    fn chain(&mut self, table: &mut Table) {
        let name = self.word().unwrap_or_default();
        if !self.open() {
            return;
        }
        if let Some(chain) = table.chain_mut(name) {
            chain.base = None;
        }
        loop {
            match self.tokens.front() {
                None => break,
                Some(Token::Close) => {
                    self.tokens.pop_front();
                    break;
                }
                Some(Token::End) => {
                    self.tokens.pop_front();
                    continue;
                }
                Some(_) => {}
            }
            let mut line = self.line();
            match line.front() {
                Some(Token::Word("type")) => {
                    if let Some(chain) = table.chain_mut(name) {
                        chain.base = base(&line);
                    }
                }
                Some(Token::Word("policy")) => {
                    let drops = line.get(1).is_some_and(|token| token.is("drop"));
                    if let Some(base) = table.chain_mut(name).and_then(|chain| chain.base.as_mut()) {
                        base.drops = drops;
                    }
                }
                // The chain's own comment; a rule never begins with one.
                Some(Token::Word("comment")) | None => {}
                Some(_) => {
                    self.items += 1;
                    if self.items > ITEMS_MAX {
                        self.ruleset.odd(|| format!("nftables: more than {ITEMS_MAX} rules"));
                        continue;
                    }
                    let mut rule = Rule::default();
                    let mut statements = Statement { tokens: std::mem::take(&mut line) };
                    while let Some(statement) = statements.next() {
                        match statement.get("comment").and_then(Value::as_str) {
                            Some(comment) => rule.comment = Some(comment.into()),
                            None => expression::statement(&statement, table, &mut rule.steps),
                        }
                    }
                    if let Some(chain) = table.chain_mut(name) {
                        chain.rules.push(rule);
                    }
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

/// The tokens of one line, taken statement by statement.
struct Statement<'a> {
    tokens: VecDeque<Token<'a>>,
}

impl<'a> Statement<'a> {
    fn peek(&self, at: usize) -> Option<&'a str> {
        self.tokens.get(at).and_then(Token::text)
    }

    fn word(&mut self) -> Option<&'a str> {
        let word = self.tokens.front().and_then(Token::text)?;
        self.tokens.pop_front();
        Some(word)
    }

    fn take(&mut self, word: &str) -> bool {
        let is = self.peek(0) == Some(word);
        if is {
            self.tokens.pop_front();
        }
        is
    }

    fn next(&mut self) -> Option<Value> {
        let statement = match self.peek(0)? {
            "jump" | "goto" | "accept" | "drop" | "return" | "reject" | "continue" => self.verdict(),
            "masquerade" | "snat" | "log" | "notrack" => {
                let name = self.word();
                self.tokens.clear();
                name.map(|name| json!({name: null}))
            }
            "counter" => {
                self.word();
                if self.take("packets") {
                    self.word();
                }
                if self.take("bytes") {
                    self.word();
                }
                Some(json!({"counter": null}))
            }
            "comment" => {
                self.word();
                self.word().map(|comment| json!({"comment": comment}))
            }
            "update" | "add" => {
                self.word();
                let set = self.word();
                let _ = self.block();
                set.map(|set| json!({"set": {"op": "update", "set": set}}))
            }
            "dnat" => self.dnat(),
            "meta" if self.peek(1) == Some("mark") && self.peek(2) == Some("set") => {
                self.tokens.drain(..3);
                let value = match (self.peek(0), self.peek(1)) {
                    (Some("meta"), Some("mark")) => {
                        self.tokens.drain(..2);
                        let operator = match self.word()? {
                            "or" => "|",
                            "and" => "&",
                            "xor" => "^",
                            operator => operator,
                        };
                        json!({operator: [{"meta": {"key": "mark"}}, number(self.word()?)]})
                    }
                    _ => number(self.word()?),
                };
                Some(json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": value}}))
            }
            _ => self.condition(),
        };
        Some(statement.unwrap_or_else(|| {
            let rest = self.tokens.drain(..).filter_map(|token| token.text()).collect::<Vec<_>>().join(" ");
            json!({"unknown": rest})
        }))
    }

    fn verdict(&mut self) -> Option<Value> {
        let name = self.word()?;
        match name {
            "jump" | "goto" => {
                let target = self.word()?;
                Some(json!({name: {"target": target}}))
            }
            "reject" => {
                // `reject with icmp type port-unreachable`
                if self.take("with") {
                    while self.peek(0).is_some_and(|word| word != "comment") {
                        self.word();
                    }
                }
                Some(json!({"reject": null}))
            }
            name => Some(json!({name: null})),
        }
    }

    /// `dnat to A:P`, `dnat ip to numgen random mod 2 map { 0 : A . P, … }`
    fn dnat(&mut self) -> Option<Value> {
        self.word();
        if self.peek(0).is_some_and(|word| word == "ip" || word == "ip6") {
            self.word();
        }
        if !self.take("to") {
            return None;
        }
        if self.peek(0) == Some("numgen") {
            let key = self.primary()?;
            if !self.take("map") {
                return None;
            }
            let set = self.block().into_iter().collect::<Option<Vec<_>>>()?;
            return Some(json!({"dnat": {"addr": {"map": {"key": key, "data": {"set": set}}}}}));
        }
        let to = self.word()?;
        if let Ok(endpoint) = to.parse::<std::net::SocketAddr>() {
            return Some(json!({"dnat": {"addr": endpoint.ip().to_string(), "port": endpoint.port()}}));
        }
        to.trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .ok()
            .map(|ip| json!({"dnat": {"addr": ip.to_string()}}))
    }

    /// One thing of the packet that can be compared.
    fn primary(&mut self) -> Option<Value> {
        let first = self.word()?;
        Some(match first {
            "ip" | "ip6" | "tcp" | "udp" | "sctp" | "th" => {
                let field = self.word()?;
                json!({"payload": {"protocol": first, "field": field}})
            }
            "meta" => {
                let key = self.word()?;
                json!({"meta": {"key": key}})
            }
            "iifname" | "iif" => json!({"meta": {"key": first}}),
            "mark" => json!({"meta": {"key": "mark"}}),
            "ct" => {
                let key = self.word()?;
                json!({"ct": {"key": key}})
            }
            "fib" => {
                let mut flags = vec![self.word()?];
                while self.take(".") {
                    flags.push(self.word()?);
                }
                let result = self.word()?;
                json!({"fib": {"result": result, "flags": flags}})
            }
            "numgen" => {
                let mode = self.word()?;
                if !self.take("mod") {
                    return None;
                }
                json!({"numgen": {"mode": mode, "mod": number(self.word()?), "offset": 0}})
            }
            _ => return None,
        })
    }

    fn condition(&mut self) -> Option<Value> {
        let first = self.primary()?;
        let mut parts = vec![first];
        while self.take(".") {
            parts.push(self.primary()?);
        }
        let mut left = if parts.len() == 1 { parts.pop()? } else { json!({"concat": parts}) };
        if self.take("vmap") {
            let data = match self.tokens.front() {
                Some(Token::Open) => json!({"set": self.block().into_iter().collect::<Option<Vec<_>>>()?}),
                _ => json!(self.word()?),
            };
            return Some(json!({"vmap": {"key": left, "data": data}}));
        }
        if self.take("&") || self.take("and") {
            left = json!({"&": [left, number(self.word()?)]});
        }
        let op = match self.peek(0) {
            Some("!=") => {
                self.word();
                "!="
            }
            Some("==") => {
                self.word();
                "=="
            }
            _ => "==",
        };
        let right = match self.tokens.front() {
            Some(Token::Open) => json!({"set": self.block().into_iter().collect::<Option<Vec<_>>>()?}),
            Some(Token::Quoted(text)) => {
                let text = *text;
                self.tokens.pop_front();
                json!(text)
            }
            _ => {
                // `ct state established,related` is a list without braces.
                let mut list = vec![value(self.word()?)];
                while self.tokens.front() == Some(&Token::Comma) {
                    self.tokens.pop_front();
                    list.push(value(self.word()?));
                }
                if list.len() == 1 { list.pop()? } else { Value::Array(list) }
            }
        };
        Some(json!({"match": {"op": op, "left": left, "right": right}}))
    }

    /// The elements between braces: `A . B comment "…" : goto C, …`. One that is not understood is `None`.
    fn block(&mut self) -> Vec<Option<Value>> {
        if self.tokens.front() != Some(&Token::Open) {
            return Vec::new();
        }
        self.tokens.pop_front();
        let mut elements = Vec::new();
        let mut element = VecDeque::new();
        while let Some(token) = self.tokens.pop_front() {
            match token {
                Token::Close => break,
                Token::Comma => elements.push(element_of(std::mem::take(&mut element))),
                Token::Open => {}
                token => element.push_back(token),
            }
        }
        if !element.is_empty() {
            elements.push(element_of(element));
        }
        elements
    }
}

fn element_of(tokens: VecDeque<Token<'_>>) -> Option<Value> {
    let mut element = Statement { tokens };
    let mut parts = vec![value(element.word()?)];
    while element.take(".") {
        parts.push(value(element.word()?));
    }
    let key = if parts.len() == 1 { parts.pop()? } else { json!({"concat": parts}) };
    // Comments, counters and times are not looked at.
    while element.peek(0).is_some_and(|word| word != ":") {
        element.tokens.pop_front();
    }
    if !element.take(":") {
        return Some(key);
    }
    let then = match element.peek(0)? {
        "jump" | "goto" | "accept" | "drop" | "return" | "reject" | "continue" => element.verdict()?,
        _ => {
            let mut parts = vec![value(element.word()?)];
            while element.take(".") {
                parts.push(value(element.word()?));
            }
            if parts.len() == 1 { parts.pop()? } else { json!({"concat": parts}) }
        }
    };
    Some(json!([key, then]))
}

/// A number, a prefix, a range, or the text itself.
fn value(text: &str) -> Value {
    if let Ok(number) = text.parse::<u32>() {
        return json!(number);
    }
    if text.starts_with("0x") {
        return number(text);
    }
    if let Some((first, last)) = text.split_once('-')
        && first.parse::<std::net::IpAddr>().is_ok()
    {
        return json!({"range": [first, last]});
    }
    json!(text)
}

fn number(text: &str) -> Value {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    parsed.map_or_else(|| json!(text), |number| json!(number))
}
