//! Parses the output of `iptables-save` and `ip6tables-save`, of either backend, with or without counters.
//!
//! Pure and tolerant: an unknown line is counted, an unknown condition becomes [`Step::Unknown`], and no input makes it
//! fail. [`crate::rules`] interprets the rules.

use std::borrow::Cow;

use crate::{
    net::{Family, Protocol},
    parse::ParseError,
    rules::{
        AddressRange, Addresses, Base, HookPoint, InIpset, Rule, Ruleset, Side, Step, Sticky, Table, Verdict,
        Writer,
        step::{Steps, thin},
    },
};

mod unprinted;
mod words;

use words::Words;

/// The most rules of one dump, ten times the largest table seen in use. Further rules count as oddities.
const MAX_RULES: usize = 4_000_000;

/// Facts about a dump from another source; they override the dump's own header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint {
    pub family: Option<Family>,
    pub writer: Option<Writer>,
}

/// Parses a dump, or several one after the other.
pub fn parse(text: &str, hint: Hint) -> Ruleset {
    let (mut ruleset, lacks) = read(text, hint);
    if let Some(lacks) = lacks {
        ruleset.odd(|| lacks.why);
    }
    ruleset
}

/// As [`parse`], but a truncated dump or another text is an error, and so is one without kube-proxy's tables or a part of their
/// conditions: half of a dump would make rules look missing.
pub fn parse_whole(text: &str, hint: Hint) -> Result<Ruleset, ParseError> {
    let begun = text.lines().filter(|line| line.starts_with('*')).count();
    let ended = text.lines().filter(|line| line.trim_end() == "COMMIT").count();
    if begun > ended {
        return Err(ParseError::new(text.lines().count(), "the list ends within a table"));
    }
    if begun == 0 && text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        return Err(ParseError::nothing_in(text, "a list of iptables-save"));
    }
    match read(text, hint) {
        (ruleset, None) => Ok(ruleset),
        (_, Some(lacks)) => Err(lacks),
    }
}

/// As [`parse_whole`], for the list of a backend that is not kube-proxy's and that [hides](hides) a table `filter`: that is
/// another program's, and hides no rule of kube-proxy's. The table is noted.
pub fn parse_beside(text: &str, hint: Hint) -> Result<Ruleset, ParseError> {
    // The numbers of the lines stay.
    let rest: Vec<&str> =
        text.lines().map(|line| if is_note_of(line, "filter") { "" } else { line }).collect();
    let mut ruleset = parse_whole(&rest.join("\n"), hint)?;
    ruleset.odd(|| unprinted(hint.family.unwrap_or(Family::Ipv4)));
    Ok(ruleset)
}

/// Why the table `filter` is not in the list of a backend that is not kube-proxy's.
pub fn unprinted(family: Family) -> String {
    unprinted::why("filter", family)
}

/// Whether the list says that it leaves this table out, because iptables cannot print it.
pub fn hides(text: &str, table: &str) -> bool {
    text.lines().any(|line| is_note_of(line, table))
}

/// Whether the line says so.
fn is_note_of(line: &str, table: &str) -> bool {
    line.trim().strip_prefix('#').and_then(|comment| unprinted::table(comment.trim())) == Some(table)
}

/// The rules, and what the program that wrote the dump left out of it.
fn read(text: &str, hint: Hint) -> (Ruleset, Option<ParseError>) {
    let mut ruleset = Ruleset::default();
    let mut reader = Reader {
        family: hint.family.unwrap_or_else(|| guess_family(text)),
        writer: hint.writer.unwrap_or(Writer::Iptables),
        table: None,
        rules: 0,
        lossy: None,
        untranslated: None,
    };
    for (at, line) in text.lines().enumerate() {
        reader.line((at + 1, line.trim()), hint, &mut ruleset);
    }
    reader.end(&mut ruleset);
    for table in &mut ruleset.tables {
        table.seal();
    }
    let lossy = reader.lossy.filter(|_| unprinted::are_missing(&ruleset));
    (ruleset, reader.untranslated.or(lossy))
}

/// The family of the first address in a rule.
fn guess_family(text: &str) -> Family {
    let addresses = text
        .lines()
        .filter(|line| line.contains("-A "))
        .flat_map(|line| line.split_ascii_whitespace().filter_map(AddressRange::parse));
    addresses.map(|range| Family::of(range.first)).next().unwrap_or(Family::Ipv4)
}

struct Reader {
    family: Family,
    writer: Writer,
    table: Option<Table>,
    rules: usize,
    /// The program that wrote the dump may leave out conditions.
    lossy: Option<ParseError>,
    /// It left out a table that kube-proxy uses.
    untranslated: Option<ParseError>,
}

impl Reader {
    fn line(&mut self, (number, line): (usize, &str), hint: Hint, ruleset: &mut Ruleset) {
        if line.is_empty() || line == "COMMIT" {
            return;
        }
        if let Some(comment) = line.strip_prefix('#') {
            self.header((number, comment.trim()), hint, ruleset);
        } else if let Some(name) = line.strip_prefix('*') {
            self.end(ruleset);
            self.table = Some(Table::new(self.writer, self.family, name));
        } else if let Some(declared) = line.strip_prefix(':') {
            self.declare(declared);
        } else if self.rules >= MAX_RULES || !self.rule(line) {
            ruleset.odd(|| {
                format!("iptables: `{}` is not understood", line.chars().take(120).collect::<String>())
            });
        }
    }

    /// `# Generated by ip6tables-save v1.8.9 (nf_tables) on …`: only `nf_tables` is named, since 1.8.8.
    fn header(&mut self, (number, comment): (usize, &str), hint: Hint, ruleset: &mut Ruleset) {
        let Some(generated) = comment.strip_prefix("Generated by ") else {
            if let Some(table) = unprinted::table(comment) {
                let family = self.family;
                self.untranslated
                    .get_or_insert_with(|| ParseError::new(number, unprinted::why(table, family)));
            } else if comment.contains("incompatible") || comment.contains("iptables-legacy tables present") {
                ruleset
                    .odd(|| format!("iptables-save says: {}", comment.chars().take(160).collect::<String>()));
            }
            return;
        };
        self.end(ruleset);
        let release = unprinted::leaves_out(generated);
        if let Some(release) = release {
            self.lossy.get_or_insert_with(|| {
                let why = format!(
                    "iptables {release} wrote this list, and leaves out marks and ports in rules of a newer iptables: list \
                     them with 1.8.8 or later, such as the one in viptrace's image"
                );
                ParseError::new(number, why)
            });
        }
        self.family = hint.family.unwrap_or(if generated.starts_with("ip6tables") {
            Family::Ipv6
        } else if generated.starts_with("iptables") {
            Family::Ipv4
        } else {
            self.family
        });
        self.writer = hint.writer.unwrap_or(if generated.contains("(nf_tables)") {
            Writer::IptablesNft
        } else if release.is_some() {
            Writer::Iptables
        } else {
            Writer::IptablesLegacy
        });
    }

    fn end(&mut self, ruleset: &mut Ruleset) {
        ruleset.tables.extend(self.table.take());
    }

    /// `PREROUTING ACCEPT [0:0]`: a built-in chain has a policy, any other chain `-`.
    fn declare(&mut self, declared: &str) {
        let Some(table) = &mut self.table else { return };
        let mut words = declared.split_ascii_whitespace();
        let (Some(name), policy) = (words.next(), words.next()) else { return };
        let base = base(&table.name, name, policy == Some("DROP"));
        if let Some(chain) = table.chain_mut(name) {
            chain.base = base;
        }
    }

    /// Returns whether the line was a rule.
    fn rule(&mut self, line: &str) -> bool {
        let line = match line.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((_, rest)) => rest.trim_start(),
                None => return false,
            },
            None => line,
        };
        let (Some(table), Some(line)) = (&mut self.table, line.strip_prefix("-A ")) else { return false };
        let mut words = Words::new(line);
        let Some(chain) = words.next() else { return false };
        let rule = parse_rule(words);
        if table.chain(&chain).is_none() {
            let base = base(&table.name, &chain, false);
            let Some(chain) = table.chain_mut(&chain) else { return false };
            chain.base = base;
        }
        table.add_rule(&chain, rule);
        self.rules += 1;
        true
    }
}

/// The hook and priority of a built-in chain. Priorities: `include/uapi/linux/netfilter_ipv4.h`, `enum
/// nf_ip_hook_priorities`.
fn base(table: &str, chain: &str, drops: bool) -> Option<Base> {
    let hook = match chain {
        "PREROUTING" => HookPoint::Prerouting,
        "INPUT" => HookPoint::Input,
        "FORWARD" => HookPoint::Forward,
        "OUTPUT" => HookPoint::Output,
        "POSTROUTING" => HookPoint::Postrouting,
        _ => return None,
    };
    let priority = match (table, hook) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", HookPoint::Prerouting | HookPoint::Output) => -100,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    };
    Some(Base { nat: table == "nat", hook, priority, drops })
}

/// Targets that do not affect the destination of a packet.
const HARMLESS: [&str; 22] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TRACE",
    "CT",
    "TCPMSS",
    "TOS",
    "DSCP",
    "CHECKSUM",
    "SET",
    "AUDIT",
    "CLASSIFY",
    "SECMARK",
    "CONNSECMARK",
    "TTL",
    "HL",
    "TEE",
    "ECN",
    "LED",
    "RATEEST",
    "IDLETIMER",
    "TCPOPTSTRIP",
];

fn parse_rule(mut words: Words<'_>) -> Rule {
    let (mut steps, mut comment) = (Steps::new(), None);
    let mut target: Option<(Cow<'_, str>, bool)> = None;
    let mut negated = false;
    let mut target_steps = Steps::new();
    let mut module = Module::default();
    while let Some(word) = words.next() {
        match word.as_ref() {
            "!" => {
                negated = true;
                continue;
            }
            "-m" | "--match" => {
                module.end(&mut steps);
                module = Module::begin(words.next(), &steps);
                continue;
            }
            "--comment" => comment = words.next().map(|text| text.as_ref().into()),
            "-j" | "-g" => {
                module.end(&mut steps);
                target = words.next().map(|name| (name, word == "-g"));
            }
            option => {
                if let Some((name, _)) = &target {
                    // KUBE chains have no options, and only those of a few targets matter.
                    target_steps.extend(target_option(name, option, &mut words));
                } else {
                    // iptables before 1.4.3 writes `-d ! ADDRESS`.
                    let is_old = words.take_negation();
                    module.condition(option, negated != is_old, &mut words, &mut steps);
                }
            }
        }
        negated = false;
    }
    if let Some((name, goto)) = target {
        let known = !target_steps.is_empty();
        steps.append(&mut target_steps);
        match name.as_ref() {
            "ACCEPT" => steps.push(Step::Do(Verdict::Accept)),
            "DROP" => steps.push(Step::Do(Verdict::Drop)),
            "REJECT" => steps.push(Step::Do(Verdict::Reject)),
            "RETURN" => steps.push(Step::Do(Verdict::Return)),
            "MASQUERADE" | "SNAT" => steps.push(Step::Do(Verdict::Masquerade)),
            "NOTRACK" => steps.push(Step::NoTrack),
            // The steps come from their options.
            "DNAT" | "MARK" | "CONNMARK" | "CT" if known => {}
            "DNAT" | "MARK" | "CONNMARK" | "REDIRECT" | "NETMAP" | "TPROXY" | "QUEUE" | "NFQUEUE" => {
                steps.push(Step::Do(Verdict::Unknown(name.as_ref().into())));
            }
            harmless if HARMLESS.contains(&harmless) => {}
            chain if goto => steps.push(Step::Do(Verdict::Goto(chain.into()))),
            chain => steps.push(Step::Do(Verdict::Jump(chain.into()))),
        }
    }
    Rule::new(steps, comment)
}

/// Matches that without an option hold for every packet that can have one. iptables prints their name with each rule of their
/// protocol, or for the options of a rule that has none.
const VACUOUS: [&str; 10] =
    ["tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmp6", "comment", "conntrack", "state"];

/// The match whose options follow (`-m NAME`).
#[derive(Default)]
struct Module<'a> {
    name: Option<Cow<'a, str>>,
    has_option: bool,
    /// The last condition is one of its unknown options.
    is_unknown: bool,
    /// The number of steps before its first option.
    begins: usize,
}

impl<'a> Module<'a> {
    fn begin(name: Option<Cow<'a, str>>, steps: &Steps) -> Self {
        Self { name, begins: steps.len(), ..Self::default() }
    }

    /// Adds the condition of an option.
    fn condition(&mut self, option: &str, negated: bool, words: &mut Words<'_>, steps: &mut Steps) {
        self.has_option = true;
        if self.name.as_deref() == Some("addrtype") && option.starts_with("--limit-iface-") {
            // An address of the node that is not one of that interface's is not LOCAL there.
            self.loosen(option, steps);
            return;
        }
        let arguments = words.clone();
        let module = self.name.as_deref().unwrap_or_default();
        if condition((module, option), negated, words, steps) {
            self.is_unknown = false;
            return;
        }
        *words = arguments;
        let mut text = if negated { format!("! {option}") } else { option.to_owned() };
        words.arguments(&mut text);
        self.unknown(&text, steps);
    }

    /// Adds an unknown option: those of one match are one condition, with the match's name.
    fn unknown(&mut self, option: &str, steps: &mut Steps) {
        if let (true, Some(Step::Unknown(text))) = (self.is_unknown, steps.last_mut()) {
            *text = format!("{text} {option}").into();
            return;
        }
        self.is_unknown = true;
        let text = match &self.name {
            Some(name) => format!("-m {name} {option}"),
            None => option.to_owned(),
        };
        steps.push(Step::Unknown(text.into()));
    }

    /// Adds an option that makes the match hold for fewer addresses. Its negated conditions hold for more of them: they are
    /// not known any more.
    fn loosen(&mut self, option: &str, steps: &mut Steps) {
        for step in steps.iter_mut().skip(self.begins) {
            if let Step::SourceLocal { negated: true } | Step::DestinationLocal { negated: true } = step {
                let side = if matches!(step, Step::SourceLocal { .. }) { "--src-type" } else { "--dst-type" };
                *step = Step::Unknown(format!("-m addrtype ! {side} LOCAL {option}").into());
                self.is_unknown = true;
                return;
            }
        }
        self.unknown(option, steps);
    }

    /// Some matches decide without an option.
    fn end(&mut self, steps: &mut Steps) {
        if let Some(name) = self.name.take()
            && !self.has_option
            && !VACUOUS.contains(&name.as_ref())
        {
            steps.push(Step::Unknown(format!("-m {name}").into()));
        }
    }
}

fn target_option(target: &str, option: &str, words: &mut Words<'_>) -> Option<Step> {
    if target == "CONNMARK" {
        return connmark_option(option, words);
    }
    match option {
        // An iptables that does not know the target's revision prints other words, or zeros.
        "--to-destination" => {
            let to = endpoint(&words.next()?).filter(|to| !to.ip().is_unspecified())?;
            Some(Step::Do(Verdict::Dnat(to.into())))
        }
        "--notrack" => Some(Step::NoTrack),
        _ if target == "MARK" => {
            let (clear, toggle) = new_mark(option, words)?;
            Some(Step::SetMark { clear, toggle })
        }
        _ => None,
    }
}

/// The bits that are cleared and those that are then toggled.
fn new_mark(option: &str, words: &mut Words<'_>) -> Option<(u32, u32)> {
    let mut argument = || mark(&words.next()?);
    Some(match option {
        "--set-xmark" => {
            let (toggle, clear) = argument()?;
            (clear, toggle)
        }
        // `--set-mark V/M` clears the bits of M and of V and then sets those of V (xt_MARK).
        "--set-mark" => {
            let (value, mask) = argument()?;
            (value | mask, value)
        }
        "--or-mark" => {
            let (value, _) = argument()?;
            (value, value)
        }
        "--xor-mark" => (0, argument()?.0),
        "--and-mark" => (!argument()?.0, 0),
        _ => return None,
    })
}

/// The target's masks follow the option that names its effect (`connmark_tg_save` in `extensions/libxt_CONNMARK.c`
/// of iptables).
fn connmark_option(option: &str, words: &mut Words<'_>) -> Option<Step> {
    let saves = match option {
        "--save-mark" => true,
        "--restore-mark" => false,
        "--left-shift-mark" | "--right-shift-mark" => {
            return Some(Step::Do(Verdict::Unknown("CONNMARK".into())));
        }
        _ => {
            let (clear, toggle) = new_mark(option, words)?;
            return Some(Step::SetConnMark { clear, toggle });
        }
    };
    let (mut of_packet, mut of_connection) = (u32::MAX, u32::MAX);
    while let Some(next) = words.peek() {
        let masks: &mut [&mut u32] = match next.as_ref() {
            "--nfmask" => &mut [&mut of_packet],
            "--ctmask" => &mut [&mut of_connection],
            "--mask" => &mut [&mut of_packet, &mut of_connection],
            _ => break,
        };
        words.next();
        let (mask, _) = mark(&words.next()?)?;
        for of in masks {
            **of = mask;
        }
    }
    Some(if saves {
        Step::SaveMark { clear: of_connection, keep: of_packet }
    } else {
        Step::RestoreMark { clear: of_packet, keep: of_connection }
    })
}

/// Parses one condition of a match; `false` if it is unknown.
fn condition(
    (module, option): (&str, &str),
    negated: bool,
    words: &mut Words<'_>,
    steps: &mut Steps,
) -> bool {
    let addresses =
        |text: Option<Cow<'_, str>>| Some(Addresses::new([AddressRange::parse(&text?)?], negated));
    let step = match option {
        "-s" | "--source" | "--src-range" => addresses(words.next()).map(Step::Source),
        "-d" | "--destination" | "--dst-range" => addresses(words.next()).map(Step::Destination),
        "-p" | "--protocol" => match words.next().as_deref() {
            Some("all") => Some(Step::Harmless),
            Some(name) => protocol(name).map(|protocol| Step::Protocol { protocol, negated }),
            None => None,
        },
        "--dport" => words.next().and_then(|text| ports(&text)).map(|(first, last)| Step::Port {
            first,
            last,
            negated,
        }),
        "-i" => words.next().map(|name| Step::Interface { name: thin(name.as_ref()), negated }),
        "--ctstate" | "--state" => words.next().map(|states| Step::State {
            new: states.split(',').any(|state| state == "NEW"),
            translated: states.split(',').any(|state| state == "DNAT"),
            established: states.split(',').any(|state| state == "ESTABLISHED"),
            untracked: states.split(',').any(|state| state == "UNTRACKED"),
            negated,
        }),
        "-o" => {
            words.next().map(|name| Step::Devices { out: true, names: thin([name.as_ref().into()]), negated })
        }
        "--dports" | "--sports" | "--sport" => words.next().and_then(|text| {
            let ranges = text.split(',').map(ports).collect::<Option<Box<[_]>>>().map(thin)?;
            Some(Step::Ports { source: option != "--dports", ranges, negated })
        }),
        "--tcp-flags" => words
            .next()
            .zip(words.next())
            .and_then(|(mask, set)| Some(Step::TcpFlags { mask: flags(&mask)?, set: flags(&set)?, negated })),
        // A new connection's packets have the original direction.
        "--ctdir" if words.take("ORIGINAL") => Some(Step::State {
            new: !negated,
            translated: false,
            established: false,
            untracked: false,
            negated: false,
        }),
        "--src-type" if words.take("LOCAL") => Some(Step::SourceLocal { negated }),
        "--dst-type" if words.take("LOCAL") => Some(Step::DestinationLocal { negated }),
        "--src-type" | "--dst-type" if words.peek().is_some_and(|kind| !kind.contains(',')) => {
            words.next().map(|kind| Step::AddressType {
                source: option == "--src-type",
                kind: thin(kind.to_ascii_lowercase()),
                negated,
            })
        }
        "--mark" => words.next().and_then(|text| mark(&text)).map(|(value, mask)| match module {
            "connmark" => Step::ConnMark { value, mask, negated },
            _ => Step::Mark { value, mask, negated },
        }),
        "--mode" if words.take("random") => Some(Step::Harmless),
        "--probability" if !negated => words
            .next()
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|chance| (0.0..=1.0).contains(chance))
            .map(Step::Chance),
        "--match-set" => words.next().zip(words.next()).and_then(|(set, sides)| {
            let side = |text: &str| match text {
                "src" => Some(Side::Source),
                "dst" => Some(Side::Destination),
                _ => None,
            };
            let sides = sides.split(',').map(side).collect::<Option<Box<[_]>>>()?;
            Some(Step::InIpset(InIpset { set: set.as_ref().into(), sides, negated }.into()))
        }),
        // No later fragment: one has no ports, and the first one is what is followed.
        // Nor did it arrive through a bridge port.
        "-f" | "--physdev-is-in" if negated => Some(Step::Harmless),
        "--nfacct-name" => words.next().map(|_| Step::Harmless),
        "--rcheck" | "--update" if !negated => return recent(words, steps, true),
        "--set" if !negated => return recent(words, steps, false),
        _ => return false,
    };
    match step {
        Some(Step::Harmless) => true,
        Some(step) => {
            steps.push(step);
            true
        }
        None => false,
    }
}

/// The options of the match `recent`, after `--rcheck` or `--set`.
fn recent(words: &mut Words<'_>, steps: &mut Steps, checks: bool) -> bool {
    let (mut name, mut seconds, mut odd) = (None, None, false);
    while let Some(option) = words.peek() {
        match option.as_ref() {
            "--name" => {
                words.next();
                name = words.next();
            }
            "--seconds" => {
                words.next();
                seconds = words.next().and_then(|text| text.parse().ok());
            }
            "--mask" => {
                words.next();
                words.next();
            }
            "--reap" | "--rsource" => {
                words.next();
            }
            "--hitcount" | "--rttl" | "--rdest" => {
                words.next();
                odd = true;
            }
            _ => break,
        }
    }
    let Some(name) = name.filter(|_| !odd) else { return false };
    steps.push(if checks {
        Step::Sticky(Sticky { list: name.as_ref().into(), seconds }.into())
    } else {
        Step::Remember(name.as_ref().into())
    });
    true
}

/// `ADDRESS:PORT`, `[ADDRESS]:PORT`, or an address alone.
fn endpoint(text: &str) -> Option<std::net::SocketAddr> {
    text.parse().ok().or_else(|| {
        let ip = text.trim_matches(['[', ']']).parse().ok()?;
        Some(std::net::SocketAddr::new(ip, 0))
    })
}

/// `VALUE` or `VALUE/MASK`, decimal or with `0x`.
fn mark(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
}

/// `PORT` or `FIRST:LAST`.
fn ports(text: &str) -> Option<(u16, u16)> {
    match text.split_once(':') {
        Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
        None => text.parse().ok().map(|port| (port, port)),
    }
}

/// `FIN,SYN,RST,ACK`, `ALL` or `NONE`, as the bits of a TCP header.
fn flags(text: &str) -> Option<u8> {
    let bit = |name: &str| {
        Some(match name {
            "FIN" => 0x01,
            "SYN" => 0x02,
            "RST" => 0x04,
            "PSH" => 0x08,
            "ACK" => 0x10,
            "URG" => 0x20,
            "ECE" => 0x40,
            "CWR" => 0x80,
            "ALL" => 0x3f,
            "NONE" => 0,
            _ => return None,
        })
    };
    text.split(',').try_fold(0, |bits, name| Some(bits | bit(name)?))
}

/// By name or number.
pub(super) fn protocol(text: &str) -> Option<Protocol> {
    Some(match text.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "sctp" => Protocol::SCTP,
        "icmp" => Protocol::ICMP,
        "ipv6-icmp" | "icmpv6" => Protocol(58),
        // As getprotobynumber(3) names them (netbase's /etc/protocols).
        "igmp" => Protocol(2),
        "ipencap" | "ipip" | "ipv4" => Protocol(4),
        "dccp" => Protocol(33),
        "ipv6" => Protocol(41),
        "gre" => Protocol(47),
        "esp" | "ipv6-crypt" => Protocol(50),
        "ah" | "ipv6-auth" => Protocol(51),
        "ospf" | "ospfigp" => Protocol(89),
        "pim" => Protocol(103),
        "vrrp" => Protocol(112),
        "l2tp" => Protocol(115),
        "mobility-header" | "ipv6-mh" | "mh" => Protocol(135),
        "udplite" => Protocol(136),
        number => Protocol(number.parse().ok()?),
    })
}
