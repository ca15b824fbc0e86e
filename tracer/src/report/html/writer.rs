//! Writes HTML that is well-formed, and in which every text is escaped.
//!
//! Names of elements and attributes are literals of this program. Everything else, such as the name of a Pod, can only be
//! written as text or as an attribute's value, and both are escaped: no caller can forget it.

use std::fmt::{self, Display, Write};

use crate::text::is_unsafe;

/// Attributes with their values.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// A document that grows.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// A document of HTML 5, so far empty.
    pub(super) fn document() -> Self {
        Self("<!DOCTYPE html>\n".to_owned())
    }

    /// The bytes so far.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// An element with what `inside` writes.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes,
        inside: impl FnOnce(&mut Self),
    ) {
        self.open(name, attributes);
        inside(self);
        self.close(name);
    }

    /// As [`element`](Self::element), on lines of its own: for elements between which spaces mean nothing.
    pub(super) fn block(
        &mut self,
        name: &'static str,
        attributes: Attributes,
        inside: impl FnOnce(&mut Self),
    ) {
        self.open(name, attributes);
        self.0.push('\n');
        inside(self);
        self.close(name);
        self.0.push('\n');
    }

    /// An element that contains only a text.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: Attributes, text: impl Display) {
        self.element(name, attributes, |html| html.text(text));
        self.0.push('\n');
    }

    /// An element without contents, such as `meta`; closed, so that readers of XML accept the document as well.
    pub(super) fn void(&mut self, name: &'static str, attributes: Attributes) {
        self.open(name, attributes);
        self.0.pop();
        self.0.push_str("/>\n");
    }

    /// A text on one line. Characters that would move, reorder or hide other text become visible.
    pub(super) fn text(&mut self, text: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(Escaped { out: &mut self.0, keeps_lines: false }, "{text}");
    }

    /// As [`text`](Self::text), with its line ends.
    pub(super) fn lines(&mut self, text: &str) {
        let _ = write!(Escaped { out: &mut self.0, keeps_lines: true }, "{text}");
    }

    /// A style sheet of this program.
    pub(super) fn style(&mut self, sheet: &'static str) {
        self.0.push_str("<style>");
        self.0.push_str(sheet);
        self.0.push_str("</style>\n");
    }

    fn open(&mut self, name: &'static str, attributes: Attributes) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            let _ = write!(self.0, " {attribute}=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    fn close(&mut self, name: &'static str) {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }
}

/// Escapes what is written to it, for text and for quoted attributes alike.
struct Escaped<'a> {
    out: &'a mut String,
    keeps_lines: bool,
}

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' => self.out.push_str("&#34;"),
                '\'' => self.out.push_str("&#39;"),
                '\n' if self.keeps_lines => self.out.push('\n'),
                character if is_unsafe(character) => self.out.extend(character.escape_unicode()),
                character => self.out.push(character),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        let mut html = Html::default();
        html.element("p", &[("title", &text)], |html| html.text(text));
        html.into_string()
    }

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            written("\"><script>alert('1')</script>"),
            "<p title=\"&#34;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;\">\
             &#34;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;</p>"
        );
        assert_eq!(
            written("&lt;\u{202e}\n"),
            "<p title=\"&amp;lt;\\u{202e}\\u{a}\">&amp;lt;\\u{202e}\\u{a}</p>"
        );
        let mut html = Html::default();
        html.lines("a\n\u{1b}<");
        assert_eq!(html.into_string(), "a\n\\u{1b}&lt;");
    }

    /// What a reader of HTML restores.
    fn unescaped(text: &str) -> String {
        let named = [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")];
        named.iter().fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_place(text in r#"([<>&"'a-z;# -]|\PC|\u{202e}|\n)*"#) {
            let html = written(&text);
            let inner = html.strip_prefix("<p title=\"").and_then(|rest| rest.strip_suffix("</p>")).unwrap();
            let (attribute, inner) = inner.split_once("\">").unwrap();
            prop_assert_eq!(attribute, inner);
            prop_assert!(!inner.contains(['<', '>', '"', '\'']));
            prop_assert!(!inner.contains(is_unsafe));
            prop_assert_eq!(unescaped(inner), crate::text::safe(&text));
        }
    }
}
