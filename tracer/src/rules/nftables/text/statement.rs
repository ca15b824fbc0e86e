//! Converts the statements of one rule, and the elements between braces, to the JSON format.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::tokens::Token;

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
            json!({"unknown": text})
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

    /// One field of the packet that can be compared.
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
