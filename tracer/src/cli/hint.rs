//! Errors that end in something to type.

use std::{error::Error, fmt};

/// An error with a hint. It shows as the error itself; the hint is printed on a line of its own.
#[derive(Debug)]
pub struct Hint {
    error: anyhow::Error,
    text: String,
}

impl Hint {
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Hint {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Adds a hint to an error.
pub trait ResultExt<T> {
    /// The hint is a command or a step that helps, without a full stop.
    fn hint(self, text: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ResultExt<T> for Result<T, E> {
    fn hint(self, text: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| Hint { error: error.into(), text: text() }.into())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_hint_is_found_below_other_context() {
        let result: anyhow::Result<()> = Err(anyhow::anyhow!("no BTF"))
            .hint(|| "run viptrace check --kernel".into())
            .context("load the hooks");
        let Err(error) = result else { panic!("it is an error") };
        let hint = error.chain().find_map(|cause| cause.downcast_ref::<Hint>());
        assert_eq!(hint.map(Hint::text), Some("run viptrace check --kernel"));
        assert_eq!(format!("{error:#}"), "load the hooks: no BTF");
    }
}
