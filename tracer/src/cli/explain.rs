//! `viptrace explain`: the knowledge base, offline.

use clap::{Args, ValueEnum};

use crate::{
    called,
    class::Class,
    cli::Outcome,
    report::{
        Printer,
        explain::{self, Explanation},
        page,
    },
};

/// The width of a page that is not written to a terminal.
const COLUMNS: usize = 80;
/// Longer lines are hard to read.
const MAX_COLUMNS: usize = 120;

const EXAMPLES: &str = "Examples:
  viptrace explain                every class, by the domain that has to act
  viptrace explain C6             a stale endpoint: mechanism, recognition, action
  viptrace explain --all -o json  all classes, as viptrace schema explain describes";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The class, as records name it: C6, N1, unknown
    #[arg(value_name = "CLASS", value_parser = class)]
    class: Option<Class>,
    /// Print every class
    #[arg(long, conflicts_with = "class")]
    all: bool,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The page, wrapped at the terminal's width; without CLASS the list
    #[default]
    Text,
    /// JSON: one object, or an array of all classes
    Json,
}

/// The number of classes that an error suggests.
const NEAR: usize = 5;

/// The class of this id, in any case.
fn class(id: &str) -> Result<Class, String> {
    id.parse().map_err(|_| {
        let near = near(&id.to_lowercase());
        let near: Vec<String> =
            near.iter().map(|class| format!("\n  {:<8} {}", class.id(), class.title())).collect();
        format!(
            "no such class; the nearest are:{}\n\nhint: {} explain lists all classes",
            near.concat(),
            called::name()
        )
    })
}

/// The classes with this word in their title or domain, or else those with the most similar ids.
fn near(word: &str) -> Vec<Class> {
    let has_word = |class: &Class| {
        word.len() > 3
            && (class.title().to_lowercase().contains(word) || class.domain().as_str().contains(word))
    };
    let named: Vec<Class> = Class::ALL.iter().copied().filter(has_word).take(NEAR).collect();
    if !named.is_empty() {
        return named;
    }
    let likeness = |class: Class| strsim::normalized_damerau_levenshtein(word, &class.id().to_lowercase());
    let mut all = Class::ALL.to_vec();
    all.sort_by(|a, b| likeness(*b).total_cmp(&likeness(*a)));
    all.truncate(NEAR);
    all
}

/// Prints the requested page, list or record.
pub(super) fn run(args: &ExplainArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    let paint = printer.paint();
    let columns = terminal_size::terminal_size_of(std::io::stdout())
        .map_or(COLUMNS, |(width, _)| usize::from(width.0).min(MAX_COLUMNS));
    let text = match (args.output, args.class) {
        (Format::Json, Some(class)) => serde_json::to_string_pretty(&Explanation::from(class))? + "\n",
        (Format::Json, None) => {
            let all: Vec<Explanation> = Class::ALL.iter().map(|class| (*class).into()).collect();
            serde_json::to_string_pretty(&all)? + "\n"
        }
        (Format::Text, Some(class)) => page::text(&called::as_typed(class.page()), columns, paint),
        (Format::Text, None) if args.all => {
            let pages: Vec<_> = Class::with_pages()
                .map(|class| page::text(&called::as_typed(class.page()), columns, paint))
                .collect();
            pages.join("\n")
        }
        (Format::Text, None) => explain::list(paint),
    };
    printer.data(&text)?;
    printer.flush()?;
    Ok(Outcome::Clean)
}
