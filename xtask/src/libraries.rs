//! The shared libraries that a program needs, and the path of a host file in the image.
//!
//! The image always has a merged /usr, so that every file has exactly one path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::call::Call;

/// The shared libraries of all `programs`, each once, with the dynamic loader.
pub(crate) fn of(programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let output = Call::new("list shared libraries", "ldd").env("LC_ALL", "C").args(programs).output()?;
    // ldd exits with 1 if any program is static, so only its output is reliable.
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let path = match line.split_once(" => ") {
            Some((name, "not found")) => {
                bail!(
                    "`ldd` does not find {name}\nhint: a package is broken; type: apt-get install --reinstall -y libc6"
                )
            }
            Some((_, path)) => path,
            // The loader has no arrow; the kernel's vdso has no path.
            None if line.starts_with('/') && !line.ends_with(':') => line,
            None => continue,
        };
        if let Some((path, _address)) = path.rsplit_once(" (") {
            found.push(PathBuf::from(path));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The copyright file of each Debian package that these files are from, by the package's name.
pub(crate) fn licences(files: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    // A package may list a file below / or below /usr, which are the same folder.
    let other = |path: &PathBuf| {
        path.strip_prefix("/usr").map_or_else(
            |_| Path::new("/usr").join(path.strip_prefix("/").unwrap_or(path)),
            |rest| Path::new("/").join(rest),
        )
    };
    let output = Call::new("find the packages of files", "dpkg-query")
        .env("LC_ALL", "C")
        .arg("--search")
        .args(files.iter().chain(&files.iter().map(other).collect::<Vec<_>>()))
        .output()?;
    // dpkg-query exits with 1 if any file is unknown, which is so for one of the two names of each.
    let found = packages(&String::from_utf8_lossy(&output.stdout));
    found
        .into_iter()
        .map(|package| {
            let file = Path::new("/usr/share/doc").join(&package).join("copyright");
            if !file.is_file() {
                bail!("{} is missing: an image needs the licences of its programs", file.display());
            }
            Ok((package, file))
        })
        .collect()
}

/// Reads the lines "package:architecture: /path" of `dpkg-query`.
fn packages(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with("diversion by "));
    let names = lines.filter_map(|line| line.split_once(": /")).map(|(names, _)| names);
    let names = names.flat_map(|names| names.split(", "));
    names.map(|name| name.split(':').next().unwrap_or(name).to_owned()).collect()
}

/// The path of a host file in the image, without the leading slash: `/bin/ip` and `/usr/bin/ip` are both `usr/bin/ip`.
pub(crate) fn place(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not text", path.display()))?;
    let text = text.trim_start_matches('/');
    Ok(if text.starts_with("usr/") { text.to_owned() } else { format!("usr/{text}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ldd_for_several_programs() {
        let text = "/usr/sbin/nft:\n\tlinux-vdso.so.1 (0x00007f4f5218b000)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x1)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x2)\n/bin/busybox:\n\tnot a dynamic executable\n/bin/x:\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x9)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(text).unwrap(), paths);
    }

    #[test]
    fn packages_are_named_without_their_architecture() {
        let text = "libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6\nnftables: /usr/sbin/nft\n\
                    diversion by dash from: /bin/sh\na, b:amd64: /etc/protocols\n";
        let found = packages(text);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a", "b", "libc6", "nftables"]);
    }

    #[test]
    fn a_missing_library_is_an_error() {
        let error = parse("\tlibgone.so.1 => not found\n").unwrap_err().to_string();
        assert!(error.contains("libgone.so.1"), "{error}");
    }

    #[test]
    fn usr_is_merged() {
        assert_eq!(
            place(Path::new("/lib64/ld-linux-x86-64.so.2")).unwrap(),
            "usr/lib64/ld-linux-x86-64.so.2"
        );
        assert_eq!(place(Path::new("/usr/sbin/nft")).unwrap(), "usr/sbin/nft");
    }

    #[test]
    fn a_real_program_needs_a_libc() {
        let found = of(&[PathBuf::from("/bin/sh")]).unwrap();
        assert!(found.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{found:?}");
    }
}
