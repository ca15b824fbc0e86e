//! The parameters of a function or a tracepoint.

use crate::kernel::btf::{
    Btf, Budget,
    error::LookupError,
    format::{
        KIND_ARRAY, KIND_CONST, KIND_ENUM, KIND_ENUM64, KIND_FUNC, KIND_FUNC_PROTO, KIND_FWD, KIND_PTR,
        KIND_RESTRICT, KIND_STRUCT, KIND_TYPE_TAG, KIND_TYPEDEF, KIND_UNION, KIND_VOLATILE, PARAMETER_BYTES,
        Record, word,
    },
};

/// No kernel function has nearly as many; it bounds the allocations for hostile BTF.
const MAX_PARAMETERS: u32 = 64;

/// How many nested types are spelt out, as in `const char *const *`.
const MAX_SPELLING_STEPS: usize = 32;

/// The parameters and the return type of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// In the order of the call; the index is the argument's number, from 0.
    pub parameters: Vec<Parameter>,
    /// Spelt as in C: `void`, `unsigned int`.
    pub returns: String,
}

/// One parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// None where the kernel does not record it.
    pub name: Option<String>,
    /// Spelt as in C: `const struct sk_buff *`. `...` for the rest of a variadic function.
    pub type_name: String,
}

impl Prototype {
    /// The number of the argument with this name, from 0.
    ///
    /// Since 6.12 the kernel marks a tracepoint's arguments that may be NULL for the verifier by a suffix of the name
    /// (`skb__nullable` of `tcp_send_reset`; `btf_param_match_suffix` in kernel/bpf/btf.c). It is not part of it here.
    pub fn position(&self, name: &str) -> Option<usize> {
        let plain = |parameter: &Parameter| {
            parameter
                .name
                .as_deref()
                .is_some_and(|full| full.strip_suffix("__nullable").unwrap_or(full) == name)
        };
        self.parameters.iter().position(plain)
    }
}

impl Btf {
    /// The prototype of a function. Several functions of one name give one answer if they are alike.
    ///
    /// A function that is described cannot always be probed: its symbol decides that.
    pub fn function(&self, name: &str) -> Result<Prototype, LookupError> {
        self.agree(
            "function",
            name,
            |record| record.kind == KIND_FUNC,
            |_, record| self.prototype(record.size_or_type),
        )
    }

    /// The id of a function in the kernel's BTF, for programs that attach by it. Several functions of one name give no
    /// answer: static functions may share a name, and an id would mean only one of them.
    pub fn function_id(&self, name: &str) -> Result<u32, LookupError> {
        self.agree("function", name, |record| record.kind == KIND_FUNC, |id, _| Ok(id))
    }

    /// The id of the type of a tracepoint, `btf_trace_NAME`, in the kernel's BTF, for programs that attach by it.
    pub fn tracepoint_id(&self, name: &str) -> Result<u32, LookupError> {
        let typedef = format!("btf_trace_{name}");
        self.agree("tracepoint", &typedef, |record| record.kind == KIND_TYPEDEF, |id, _| Ok(id))
    }

    /// The number of a function's argument, from 0.
    pub fn parameter(&self, function: &str, name: &str) -> Result<usize, LookupError> {
        self.function(function)?
            .position(name)
            .ok_or_else(|| LookupError::NotFound { what: "parameter", name: format!("{function}({name})") })
    }

    /// The arguments that a raw tracepoint passes to a program, without the leading `void *__data`.
    ///
    /// The arguments come from the typedef `btf_trace_NAME` (`include/trace/bpf_probe.h`): a pointer to a function,
    /// and C keeps no names for the parameters of such a type. They are taken from `__traceiter_NAME`, which
    /// calls the probes (include/linux/tracepoint.h, since 5.10), or else from `__probestub_NAME` (since 6.4) or
    /// `__bpf_trace_NAME`, provided that its types are the same; otherwise they stay unnamed.
    pub fn raw_tracepoint(&self, name: &str) -> Result<Prototype, LookupError> {
        let what = "tracepoint";
        let typedef = format!("btf_trace_{name}");
        let of = |record: &Record| record.kind == KIND_TYPEDEF;
        let found = self.agree(what, &typedef, of, |id, _| {
            let why = "a tracepoint's typedef is not a pointer to a function";
            let malformed = LookupError::Malformed { id, why };
            let mut budget = Budget::new();
            let pointer = self.resolve(id, &mut budget)?.filter(|(_, record)| record.kind == KIND_PTR);
            let Some((_, pointer)) = pointer else { return Err(malformed) };
            match self.resolve(pointer.size_or_type, &mut budget)? {
                Some((proto, record)) if record.kind == KIND_FUNC_PROTO => self.prototype(proto),
                _ => Err(malformed),
            }
        });
        let mut prototype = found.map_err(|error| match error {
            LookupError::NotFound { .. } => LookupError::NotFound { what, name: name.to_owned() },
            other => other,
        })?;
        let unnamed =
            |prototype: &Prototype| prototype.parameters.iter().any(|parameter| parameter.name.is_none());
        for prefix in ["__traceiter_", "__probestub_", "__bpf_trace_"] {
            if !unnamed(&prototype) {
                break;
            }
            if let Ok(twin) = self.function(&format!("{prefix}{name}"))
                && same_types(&twin, &prototype)
            {
                prototype.parameters = twin.parameters;
            }
        }
        if !prototype.parameters.is_empty() {
            prototype.parameters.remove(0);
        }
        Ok(prototype)
    }

    fn prototype(&self, id: u32) -> Result<Prototype, LookupError> {
        let (record, tail) = self.record(id)?;
        if record.kind != KIND_FUNC_PROTO {
            return Err(LookupError::Malformed { id, why: "it should be a function's prototype" });
        }
        if record.count > MAX_PARAMETERS {
            return Err(LookupError::Malformed { id, why: "it has an absurd number of parameters" });
        }
        let parameters = tail
            .chunks_exact(PARAMETER_BYTES)
            .map(|entry| {
                let at = |offset| word(entry, offset).unwrap_or_default();
                let (name, type_id) = (at(0), at(4));
                let type_name =
                    if (name, type_id) == (0, 0) { "...".to_owned() } else { self.spelling(type_id)? };
                Ok(Parameter { name: self.text(name), type_name })
            })
            .collect::<Result<_, LookupError>>()?;
        Ok(Prototype { parameters, returns: self.spelling(record.size_or_type)? })
    }

    fn text(&self, offset: u32) -> Option<String> {
        self.string(offset).map(|name| String::from_utf8_lossy(name).into_owned())
    }

    /// A type as C would write it, near enough to be read and compared.
    fn spelling(&self, id: u32) -> Result<String, LookupError> {
        let (mut front, mut back) = (String::new(), String::new());
        let mut next = id;
        for _ in 0..MAX_SPELLING_STEPS {
            if next == 0 {
                return Ok(joined(&front, "void", &back));
            }
            let (record, tail) = self.record(next)?;
            let name = self.text(record.name).unwrap_or_else(|| "(anonymous)".to_owned());
            let base = match record.kind {
                KIND_PTR => {
                    back.insert(0, '*');
                    next = record.size_or_type;
                    continue;
                }
                KIND_CONST | KIND_VOLATILE | KIND_RESTRICT | KIND_TYPE_TAG => {
                    let qualifier = match record.kind {
                        KIND_CONST => "const ",
                        KIND_VOLATILE => "volatile ",
                        KIND_RESTRICT => "restrict ",
                        _ => "",
                    };
                    next = record.size_or_type;
                    // A pointer's own qualifiers follow its star, those of its target come first.
                    if next != 0 && self.record(next)?.0.kind == KIND_PTR {
                        back.insert_str(0, qualifier);
                    } else {
                        front.push_str(qualifier);
                    }
                    continue;
                }
                KIND_ARRAY => {
                    back = format!("{back}[{}]", word(tail, 8).unwrap_or_default());
                    next = word(tail, 0).unwrap_or_default();
                    continue;
                }
                KIND_FWD if record.flag => format!("union {name}"),
                KIND_STRUCT | KIND_FWD => format!("struct {name}"),
                KIND_UNION => format!("union {name}"),
                KIND_ENUM | KIND_ENUM64 => format!("enum {name}"),
                KIND_FUNC_PROTO => "function".to_owned(),
                _ => name,
            };
            return Ok(joined(&front, &base, &back));
        }
        Err(LookupError::Malformed { id, why: "it is a pointer to a pointer without end" })
    }
}

fn joined(front: &str, base: &str, back: &str) -> String {
    let space = if back.is_empty() { "" } else { " " };
    format!("{front}{base}{space}{back}").trim_end().to_owned()
}

fn same_types(one: &Prototype, other: &Prototype) -> bool {
    let types = |prototype: &Prototype| {
        prototype.parameters.iter().map(|parameter| parameter.type_name.clone()).collect::<Vec<_>>()
    };
    types(one) == types(other)
}
