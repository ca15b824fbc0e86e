//! Converts the statements of one rule, and the elements between braces, to the JSON format.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{super::foreign, tokens::Token};

/// The tokens of one line, consumed statement by statement.
pub(super) struct Statement<'a> {
    pub(super) tokens: VecDeque<Token<'a>>,
}

const VERDICTS: [&str; 7] = ["jump", "goto", "accept", "drop", "return", "reject", "continue"];

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

    pub(super) fn next(&mut self) -> Option<Value> {
        let first = self.peek(0)?;
        let statement = match first {
            word if VERDICTS.contains(&word) => self.verdict(),
            "redirect" | "queue" | "tproxy" => {
                self.word();
                self.tokens.clear();
                Some(json!({first: null}))
            }
            "masquerade" | "snat" => {
                let name = self.word();
                let to = self.tokens.iter().any(|token| token.is("map")).then(|| json!({"map": null}));
                self.tokens.clear();
                name.map(|name| json!({name: {"addr": to}}))
            }
            "notrack" => self.word().map(|name| json!({name: null})),
            "log" => {
                self.word();
                self.log_options();
                Some(json!({"log": null}))
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
            _ => self.condition(),
        };
        Some(statement.unwrap_or_else(|| {
            // The verdict still counts.
            let is_verdict =
                |token: &Token<'_>| matches!(token, Token::Word(word) if VERDICTS.contains(word));
            let end = self.tokens.iter().position(is_verdict).unwrap_or(self.tokens.len());
            let rest =
                self.tokens.drain(..end).filter_map(|token| token.text()).collect::<Vec<_>>().join(" ");
            let text = if self.peek(0) == Some(first) || rest.starts_with(first) {
                rest
            } else {
                format!("{first} {rest}").trim_end().to_owned()
            };
            // The names of iptables' targets are in capitals.
            let is_target = |word: &str| {
                let name = word.strip_prefix("xt_");
                name.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))
            };
            let has_effect = matches!(first, "dnat" | "fwd" | "synproxy") || is_target(first);
            let kind = if has_effect { "unknown effect" } else { "unknown" };
            json!({kind: text})
        }))
    }

    /// `prefix "x" level info flags tcp sequence,options`
    fn log_options(&mut self) {
        loop {
            match self.peek(0) {
                Some("prefix" | "level" | "group" | "snaplen" | "queue-threshold") => {
                    self.tokens.drain(..self.tokens.len().min(2));
                }
                Some("flags") => {
                    self.word();
                    let layer = self.word();
                    if matches!(layer, Some("tcp" | "ip")) {
                        self.word();
                        while self.tokens.front() == Some(&Token::Comma) {
                            self.tokens.pop_front();
                            self.word();
                        }
                    }
                }
                _ => return,
            }
        }
    }

    /// A mark: numbers and marks with operators between them, of which `&` binds closest and `|` last.
    fn mark(&mut self) -> Option<Value> {
        const OPERATORS: [(&str, &str); 3] = [("|", "or"), ("^", "xor"), ("&", "and")];
        self.operation(&OPERATORS)
    }

    fn operation(&mut self, operators: &[(&str, &str)]) -> Option<Value> {
        let Some(((symbol, word), closer)) = operators.split_first() else { return self.operand() };
        let mut left = self.operation(closer)?;
        while self.take(symbol) || self.take(word) {
            let right = self.operation(closer)?;
            left = json!({*symbol: [left, right]});
        }
        Some(left)
    }

    fn operand(&mut self) -> Option<Value> {
        match self.peek(0)? {
            "meta" | "mark" | "ct" => self.primary(),
            _ => Some(number(self.word()?)),
        }
    }

    /// The new value of a field, after the word `set`.
    fn new_value(&mut self, key: &Value) -> Option<Value> {
        let of = |kind: &str| key.get(kind).and_then(|of| of.get("key")).and_then(Value::as_str);
        let value = if of("meta") == Some("mark") || of("ct") == Some("mark") {
            self.mark()?
        } else {
            if self.peek(0) == Some("rt") {
                self.word();
            }
            value(self.word()?)
        };
        Some(json!({"mangle": {"key": key, "value": value}}))
    }

    /// A map of verdicts, after the word `vmap`.
    fn verdict_map(&mut self, key: &Value) -> Option<Value> {
        let data = match self.tokens.front() {
            Some(Token::Open) => json!({"set": self.block().into_iter().collect::<Option<Vec<_>>>()?}),
            _ => json!(self.word()?),
        };
        Some(json!({"vmap": {"key": key, "data": data}}))
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

    /// One field of the packet that can be compared.
    fn primary(&mut self) -> Option<Value> {
        let first = self.word()?;
        Some(match first {
            "tcp" if self.peek(0) == Some("option") => {
                self.word();
                let (name, field) = (self.word()?, self.word()?);
                json!({"tcp option": {"name": name, "field": field}})
            }
            "ip" | "ip6" | "tcp" | "udp" | "sctp" | "th" => {
                let field = self.word()?;
                json!({"payload": {"protocol": first, "field": field}})
            }
            "meta" => {
                let key = self.word()?;
                json!({"meta": {"key": key}})
            }
            "iifname" | "iif" | "oifname" | "oif" => json!({"meta": {"key": first}}),
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
        // These words have an effect, also if the rest is not understood.
        if self.take("set") {
            return Some(self.new_value(&left).unwrap_or_else(|| unknown_effect(&left, "set")));
        }
        if self.take("vmap") {
            return Some(self.verdict_map(&left).unwrap_or_else(|| unknown_effect(&left, "vmap")));
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

    /// The elements between braces: `A . B comment "…" : goto C, …`. An unknown element is `None`.
    pub(super) fn block(&mut self) -> Vec<Option<Value>> {
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

/// A statement that begins with this field and changes it or decides by it.
fn unknown_effect(field: &Value, word: &str) -> Value {
    json!({"unknown effect": format!("{} {word}", foreign::describe(&field.into()))})
}

fn element_of(tokens: VecDeque<Token<'_>>) -> Option<Value> {
    let mut element = Statement { tokens };
    let mut parts = vec![value(element.word()?)];
    while element.take(".") {
        parts.push(value(element.word()?));
    }
    let key = if parts.len() == 1 { parts.pop()? } else { json!({"concat": parts}) };
    // Skips comments, counters and times.
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
    if let Some((first, last)) = text.split_once('-') {
        if first.parse::<std::net::IpAddr>().is_ok() {
            return json!({"range": [first, last]});
        }
        if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) {
            return json!({"range": [first, last]});
        }
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
