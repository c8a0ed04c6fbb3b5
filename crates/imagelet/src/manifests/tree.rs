//! A document as it was written, place by place, so that a complaint names the field and the line and shows no value.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// Longest text of manifests read from one file: bundles of an operator have a few megabytes.
pub(super) const TEXT_LENGTH_MAX: usize = 8 << 20;
/// Manifests of one file.
const DOCUMENTS_MAX: usize = 10_000;
/// Lists and objects inside of one another; a pod template in a `CronJob` in a `List` has a dozen.
const DEPTH_MAX: usize = 48;
/// Values of one document, those behind aliases counted at each use.
const NODES_MAX: usize = 200_000;
/// Aliases of one document.
const ALIASES_MAX: usize = 1_000;

/// A value and the line it stands in. Has no `Debug`: it may be a password.
pub(super) struct Node {
    line: u64,
    value: Value,
}

enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
    /// A number or a truth value, as its kind.
    Other(&'static str),
}

/// A document cannot be used. Shows where, and nothing of what stands there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TreeError {
    /// It is no YAML and no JSON, or goes beyond the bounds.
    Syntax { line: Option<u64> },
    /// More manifests than anybody writes.
    TooMany,
    /// A field is of another kind than it should be.
    Shape { field: String, line: u64, found: &'static str, wanted: &'static str },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { line: None } => f.write_str("it does not read as YAML or JSON"),
            Self::Syntax { line: Some(line) } => write!(f, "line {line} does not read as YAML or JSON"),
            Self::TooMany => write!(f, "it has more than {DOCUMENTS_MAX} manifests"),
            Self::Shape { field, line, found, wanted } => {
                write!(f, "`{field}` in line {line} is {found}, not {wanted}")
            }
        }
    }
}

/// All documents of a text, empty ones left out.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, TreeError> {
    let mut documents = Vec::new();
    for (line, chunk) in split(text) {
        if documents.len() == DOCUMENTS_MAX {
            return Err(TreeError::TooMany);
        }
        let node = parse(chunk).map_err(|found| TreeError::Syntax { line: found.map(|found| found + line) })?;
        documents.extend(node.map(|mut node| {
            node.move_down(line);
            node
        }));
    }
    Ok(documents)
}

/// The pieces between `---` lines that have something in them, each with the number of lines before it.
fn split(text: &str) -> Vec<(u64, &str)> {
    let (mut pieces, mut start, mut first_line, mut at) = (Vec::new(), 0, 0, 0);
    let mut take = |line: u64, piece| {
        if str::lines(piece).any(has_content) {
            pieces.push((line, piece));
        }
    };
    for (number, line) in (0u64..).zip(text.split_inclusive('\n')) {
        if is_separator(line) {
            take(first_line, &text[start..at]);
            (start, first_line) = (at, number);
        }
        at += line.len();
    }
    take(first_line, &text[start..]);
    pieces
}

/// In YAML no other line begins so, not even inside of a text.
fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Comments and directives alone make no document.
fn has_content(line: &str) -> bool {
    let rest = if is_separator(line) { &line[3..] } else { line };
    let rest = rest.trim();
    !(rest.is_empty() || rest.starts_with('#') || line.starts_with('%') || rest == "...")
}

/// One document; `None` where it is empty. Fails with the line, counted from 1.
fn parse(text: &str) -> Result<Option<Node>, Option<u64>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
            max_total_scalar_bytes: 2 * TEXT_LENGTH_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES_MAX },
        with_snippet: false,
        // `on` and `no` are words here; only numbers and `true` and `false` are something else.
        strict_booleans: true,
    };
    let read: Result<Node, _> = serde_saphyr::from_str_with_options(text, options);
    let node = read.map_err(|error| error.location().map(|location| location.line()).filter(|line| *line > 0))?;
    Ok(Some(node).filter(|node| !matches!(node.value, Value::Null)))
}

impl Node {
    fn move_down(&mut self, lines: u64) {
        self.line += lines;
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.move_down(lines)),
            Value::Object(fields) => fields.iter_mut().for_each(|(_, node)| node.move_down(lines)),
            Value::Null | Value::Text(_) | Value::Other(_) => {}
        }
    }

    /// The document as a whole.
    pub(super) fn root(&self) -> Place<'_> {
        Place { node: Some(self), field: String::new() }
    }
}

/// A field of a document, there or not, and its name from the top.
pub(super) struct Place<'a> {
    node: Option<&'a Node>,
    field: String,
}

impl<'a> Place<'a> {
    /// Whether something is written here; `null` is nothing.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.value(), None | Some(Value::Null))
    }

    /// Whether this is an object.
    pub(super) fn is_object(&self) -> bool {
        matches!(self.value(), Some(Value::Object(_)))
    }

    /// The line it stands in; 0 where there is nothing.
    pub(super) fn line(&self) -> u64 {
        self.node.map_or(0, |node| node.line)
    }

    /// Its name from the top of the document.
    pub(super) fn field(&self) -> &str {
        &self.field
    }

    /// A field of this object.
    pub(super) fn at(&self, name: &str) -> Result<Place<'a>, TreeError> {
        let field = if self.field.is_empty() { name.to_owned() } else { format!("{}.{name}", self.field) };
        let node = match self.value() {
            None | Some(Value::Null) => None,
            Some(Value::Object(fields)) => fields.iter().find(|(key, _)| key == name).map(|(_, node)| node),
            Some(_) => return Err(self.is_not("an object")),
        };
        Ok(Place { node, field })
    }

    /// The values of this list.
    pub(super) fn list(&self) -> Result<Vec<Place<'a>>, TreeError> {
        match self.value() {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::List(nodes)) => {
                let place = |(at, node)| Place { node: Some(node), field: format!("{}[{at}]", self.field) };
                Ok(nodes.iter().enumerate().map(place).collect())
            }
            Some(_) => Err(self.is_not("a list")),
        }
    }

    /// This text; empty where there is none.
    pub(super) fn text(&self) -> Result<&'a str, TreeError> {
        match self.value() {
            None | Some(Value::Null) => Ok(""),
            Some(Value::Text(text)) => Ok(text),
            Some(_) => Err(self.is_not("a text")),
        }
    }

    /// The texts of this object by their names.
    pub(super) fn texts(&self) -> Result<Vec<(&'a str, &'a str)>, TreeError> {
        match self.value() {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(fields)) => {
                fields.iter().map(|(key, _)| Ok((key.as_str(), self.at(key)?.text()?))).collect()
            }
            Some(_) => Err(self.is_not("an object")),
        }
    }

    fn value(&self) -> Option<&'a Value> {
        self.node.map(|node| &node.value)
    }

    fn is_not(&self, wanted: &'static str) -> TreeError {
        let found = match self.value() {
            None | Some(Value::Null) => "nothing",
            Some(Value::Text(_)) => "a text",
            Some(Value::List(_)) => "a list",
            Some(Value::Object(_)) => "an object",
            Some(Value::Other(kind)) => kind,
        };
        let field = if self.field.is_empty() { "the document".to_owned() } else { self.field.clone() };
        TreeError::Shape { field, line: self.line(), found, wanted }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other("a truth value"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Other("a number"))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Value, E> {
        Ok(Value::Other("a number"))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
        Ok(Value::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other("a number"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
        std::str::from_utf8(bytes).map(|text| Value::Text(text.to_owned())).map_err(|_| E::custom("not a text"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields: Vec<(String, Node)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom("a field twice"));
            }
            fields.push((name, map.next_value()?));
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Node {
        let mut documents = documents(text).expect("it reads");
        assert_eq!(documents.len(), 1);
        documents.remove(0)
    }

    #[test]
    fn documents_are_told_apart_and_keep_their_lines() {
        let text = "%YAML 1.2\n# bundle\n---\nkind: A\ntext: |\n  ---\n  b\n--- # next\n\n---\n# nothing\n---\nspec:\n  image: [1]\n...\n";
        let documents = documents(text).expect("it reads");
        assert_eq!(documents.len(), 2);
        let (first, second) = (documents[0].root(), documents[1].root());
        assert_eq!(first.at("text").unwrap().text(), Ok("---\nb\n"));
        assert_eq!(first.at("kind").unwrap().line(), 4);
        let error = second.at("spec").unwrap().at("image").unwrap().text().unwrap_err();
        assert_eq!(error.to_string(), "`spec.image` in line 14 is a list, not a text");
    }

    #[test]
    fn json_is_read_with_all_its_escapes() {
        let node = one("{\n\t\"kind\": \"P\\u006fd\",\n\t\"a\": [\"\\ud83d\\ude00\", \"b\\/c\"], \"n\": null}\n");
        let list = node.root().at("a").unwrap().list().unwrap();
        assert_eq!(node.root().at("kind").unwrap().text(), Ok("Pod"));
        assert_eq!((list[0].text(), list[1].text()), (Ok("😀"), Ok("b/c")));
        assert!(!node.root().at("n").unwrap().is_there());
        assert_eq!((list[1].field(), list[1].line()), ("a[1]", 3));
    }

    #[test]
    fn words_stay_words_and_numbers_are_told() {
        let node = one("a: on\nb: 12\nc: true\nd: '12'\ne: 1.5\n");
        assert_eq!(node.root().at("a").unwrap().text(), Ok("on"));
        assert_eq!(node.root().at("d").unwrap().text(), Ok("12"));
        for (name, found) in [("b", "a number"), ("c", "a truth value"), ("e", "a number")] {
            let error = node.root().at(name).unwrap().text().unwrap_err();
            assert!(matches!(error, TreeError::Shape { found: told, .. } if told == found), "{error}");
        }
    }

    #[test]
    fn an_alias_stands_for_its_anchor_and_a_bomb_of_them_is_refused() {
        let node = one("a: &x {image: i}\nb: *x\n");
        assert_eq!(node.root().at("b").unwrap().at("image").unwrap().text(), Ok("i"));
        let level =
            |level: usize| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(","));
        let bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned() + &(1..12).map(level).collect::<Vec<_>>().concat();
        assert!(matches!(documents(&bomb), Err(TreeError::Syntax { .. })));
    }

    #[test]
    fn what_is_too_deep_too_much_or_written_twice_is_refused_with_its_line() {
        let deep = format!("kind: Pod\nspec: {}{}\n", "[".repeat(5000), "]".repeat(5000));
        let block = (0..3000).map(|depth| " ".repeat(depth) + "a:\n").collect::<Vec<_>>().concat();
        let wide = format!("a: [{}]\n", "1,".repeat(NODES_MAX + 1));
        for text in [deep.as_str(), block.as_str(), wide.as_str(), "a: 1\nb: 2\na: 3\n", "a: [hunter2\nb: }", "\u{0}"] {
            let error = documents(text).err().expect("refused");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert_eq!(documents("a: 1\n---\nb: 2\nb: 3\n").err(), Some(TreeError::Syntax { line: Some(4) }));
        let many = "---\na: 1\n".repeat(DOCUMENTS_MAX + 1);
        assert_eq!(documents(&many).err(), Some(TreeError::TooMany));
    }
}
