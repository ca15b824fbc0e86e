//! `viptrace pages`: man pages and shell completions from the definition of the command line, for packages.

use std::{fs, path::Path};

use anyhow::Context as _;
use clap::{CommandFactory as _, builder::Resettable};
use clap_complete::Shell;

use crate::cli::{
    Outcome, ResultExt as _,
    args::{Cli, PagesArgs},
    kubectl::args::Plugin,
};

/// Writes `man1/` and `completions/` in the folder.
pub(super) fn run(args: &PagesArgs) -> anyhow::Result<Outcome> {
    let [man, completions] = ["man1", "completions"].map(|name| args.folder.join(name));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))
            .hint(|| "name a folder that you may write to".to_owned())?;
    }
    let unwritable = |folder: &Path| format!("cannot write in {}", folder.display());
    // The origin of this program's eBPF object is no property of the page.
    let program = Cli::command().long_version(Resettable::Reset);
    clap_mangen::generate_to(program, &man).with_context(|| unwritable(&man))?;
    let plugin = Plugin::command()
        .name("kubectl-viptrace")
        .display_name("kubectl-viptrace")
        .bin_name("kubectl viptrace");
    clap_mangen::generate_to(plugin, &man).with_context(|| unwritable(&man))?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Cli::command(), "viptrace", &completions)
            .with_context(|| unwritable(&completions))?;
    }
    Ok(Outcome::Clean)
}
