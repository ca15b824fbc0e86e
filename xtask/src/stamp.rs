//! Decides whether a product built from files is fresh: a stamp lists every input with its size and modification time.
//!
//! The stamp is a text file beside the product, so that `diff` shows the reason for a rebuild.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};

/// The list of inputs of one product.
#[derive(Debug)]
pub(crate) struct Stamp {
    text: String,
}

impl Stamp {
    /// `recipe` identifies the build steps; change it whenever they change.
    pub(crate) fn new(recipe: &str) -> Self {
        Self { text: format!("{recipe}\n") }
    }

    /// Adds an input that is not a file.
    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}");
    }

    /// Adds a file by path, size in bytes and modification time in nanoseconds.
    pub(crate) fn file(&mut self, path: &Path) -> Result<()> {
        let described = fs::metadata(path).and_then(|data| Ok((data.len(), data.modified()?)));
        let (size, modified) =
            described.with_context(|| format!("could not read the metadata of {}", path.display()))?;
        let since = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let _ = writeln!(self.text, "{} {size} {since}", path.display());
        Ok(())
    }

    /// Whether `product` exists and was built from exactly these inputs.
    pub(crate) fn is_fresh(&self, product: &Path) -> bool {
        product.exists() && fs::read_to_string(beside(product)).is_ok_and(|text| text == self.text)
    }

    /// Records that `product` was built from these inputs. Call it after the product is complete.
    pub(crate) fn keep(&self, product: &Path) -> Result<()> {
        let path = beside(product);
        fs::write(&path, &self.text).with_context(|| format!("could not write {}", path.display()))
    }
}

fn beside(product: &Path) -> PathBuf {
    product.with_added_extension("stamp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_input_or_recipe_makes_it_stale() {
        let here = tempfile::tempdir().unwrap();
        let (input, product) = (here.path().join("input"), here.path().join("product.cpio"));
        fs::write(&input, "one").unwrap();
        let stamp = |recipe: &str| {
            let mut stamp = Stamp::new(recipe);
            stamp.file(&input).unwrap();
            stamp
        };
        assert!(!stamp("v1").is_fresh(&product));
        fs::write(&product, "built").unwrap();
        stamp("v1").keep(&product).unwrap();
        assert!(stamp("v1").is_fresh(&product));
        assert!(!stamp("v2").is_fresh(&product));
        fs::write(&input, "longer").unwrap();
        assert!(!stamp("v1").is_fresh(&product));
        fs::remove_file(&product).unwrap();
        assert!(!stamp("v1").is_fresh(&product));
    }

    #[test]
    fn a_missing_input_is_an_error() {
        assert!(Stamp::new("v1").file(Path::new("/nonexistent/input")).is_err());
    }
}
