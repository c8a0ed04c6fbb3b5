//! Reads Rust source just far enough to see which room names which.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies two levels down").to_path_buf()
}

/// All `.rs` files below `root`, sorted.
pub(crate) fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Blanks out comments, strings and char literals; newlines stay, so that line numbers do.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = at + skipped_length(rest, kept.last().copied());
        if end == at {
            kept.push(bytes[at]);
            at += 1;
        } else {
            kept.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// How many bytes at the start of `rest` are a comment or a literal; 0 when it is code.
fn skipped_length(rest: &[u8], before: Option<u8>) -> usize {
    if rest.starts_with(b"//") {
        return rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_length(rest);
    }
    let in_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !in_word && let Some(length) = raw_string_length(rest) {
        return length;
    }
    match rest[0] {
        b'"' => quoted_length(rest, b'"'),
        // A lifetime has no closing quote right behind its first character.
        b'\'' if rest.get(1) == Some(&b'\\') || rest.get(2) == Some(&b'\'') => quoted_length(rest, b'\''),
        _ => 0,
    }
}

fn block_comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(rest.first() == Some(&b'b'));
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &rest[open + 1..];
    let length = body.windows(closing.len()).position(|window| window == closing)?;
    Some(open + 1 + length + closing.len())
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Takes the items under `#[cfg(test)]` away: what tests name is no arrow of the house.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        rest = &rest[at + item_length(&rest[at..])..];
    }
    kept.push_str(rest);
    kept
}

/// Bytes up to the end of the item: its closing brace, or its semicolon where it has none.
fn item_length(item: &str) -> usize {
    let mut depth = 0usize;
    for (at, letter) in item.char_indices() {
        match letter {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    item.len()
}

/// The first segments named behind `prefix` (`crate::`): `crate::{a::B, c}` names `a` and `c`.
pub(crate) fn first_segments(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        // `super::super::` is one prefix, met at its own length; `my_crate::` is none.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.trim_start().strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => found.extend(identifier(rest)),
        }
    }
    found
}

/// The first identifier of each branch of a `use` group whose opening brace is already read.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let (mut depth, mut fresh) = (1usize, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ',' if depth == 1 => fresh = true,
            _ if fresh && !letter.is_whitespace() => {
                heads.extend(identifier(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

/// A name that a `use` brings into a file.
#[derive(Debug, PartialEq)]
pub(crate) struct Import {
    /// By which name the file knows it; `*` for all names of the path.
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
    /// `pub use`: the name is meant for others.
    pub(crate) handed_on: bool,
}

/// The imports of a file, and its code without them.
pub(crate) fn imports(code: &str) -> (Vec<Import>, String) {
    let (mut found, mut rest, mut at) = (Vec::new(), String::new(), 0);
    while let Some(start) =
        code[at..].match_indices("use ").map(|(start, _)| at + start).find(|start| begins_item(code, *start))
    {
        let Some(length) = code[start..].find(';') else { break };
        let before = code[at..start].trim_end();
        let visible = before.ends_with("pub")
            || (before.ends_with(')') && before.rfind("pub(").is_some_and(|pub_at| !before[pub_at..].contains(';')));
        let tree: String = code[start + "use ".len()..start + length].split_whitespace().collect::<Vec<_>>().join(" ");
        branches(&tree, &[], visible, &mut found);
        rest.push_str(&code[at..start]);
        at = start + length + 1;
    }
    rest.push_str(&code[at..]);
    (found, rest)
}

/// Whether `use` at this place is a keyword that begins an item.
fn begins_item(code: &str, at: usize) -> bool {
    let before = code[..at].trim_end();
    code[..at].chars().next_back().is_none_or(|letter| !(letter.is_alphanumeric() || letter == '_'))
        && (before.is_empty() || before.ends_with([';', '}', '{', ']', ')']) || before.ends_with("pub"))
}

fn branches(tree: &str, path: &[String], handed_on: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let heads = tree[..open].trim().trim_end_matches("::").split("::").map(str::trim);
        let path: Vec<String> =
            path.iter().cloned().chain(heads.filter(|head| !head.is_empty()).map(str::to_owned)).collect();
        let inside = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
        let (mut depth, mut from) = (0usize, 0);
        for (at, letter) in inside.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    branches(&inside[from..at], &path, handed_on, found);
                    from = at + 1;
                }
                _ => {}
            }
        }
        branches(&inside[from..], &path, handed_on, found);
    } else if !tree.is_empty() {
        let (spelled, alias) =
            tree.split_once(" as ").map_or((tree, None), |(spelled, alias)| (spelled, Some(alias.trim())));
        let mut path: Vec<String> =
            path.iter().cloned().chain(spelled.split("::").map(|part| part.trim().to_owned())).collect();
        path.retain(|part| !part.is_empty());
        if path.last().is_some_and(|last| last == "self" || last == "*") {
            let last = path.pop().unwrap_or_default();
            let name = if last == "*" { "*" } else { alias.or(path.last().map(String::as_str)).unwrap_or_default() };
            found.push(Import { name: name.to_owned(), path, handed_on });
        } else if let Some(last) = path.last() {
            found.push(Import { name: alias.unwrap_or(last).to_owned(), path, handed_on });
        }
    }
}

/// The names of the items that code defines, whatever their depth: functions, types, constants, traits, macros.
pub(crate) fn defined_items(code: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];
    let words: Vec<&str> = code.split_whitespace().collect();
    let pairs =
        words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0].rsplit(['(', '{', ';']).next().unwrap_or_default()));
    pairs.filter_map(|pair| identifier(pair[1])).collect()
}

/// The names of the types that code makes public to other crates.
pub(crate) fn public_types(code: &str) -> Vec<String> {
    let words: Vec<&str> = code.split_whitespace().collect();
    let types =
        words.windows(3).filter(|three| three[0] == "pub" && ["struct", "enum", "trait", "type"].contains(&three[1]));
    types.filter_map(|three| identifier(three[2])).collect()
}

/// The paths of two and more segments that code names.
pub(crate) fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(|letter: char| letter.is_alphabetic() || letter == '_') {
        let (before, here) = rest.split_at(at);
        let mut path: Vec<String> = Vec::new();
        let mut behind = here;
        while let Some(word) = identifier(behind) {
            behind = &behind[word.len()..];
            path.push(word);
            let Some(next) = behind.strip_prefix("::") else { break };
            behind = next;
        }
        if path.len() > 1 && !before.ends_with("::") {
            found.push(path);
        }
        rest = behind;
    }
    found
}

fn identifier(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (!word.is_empty()).then_some(word)
}

#[test]
fn strings_and_comments_are_no_code() {
    let code = without_comments_and_strings(
        "a // crate::x\nb \"crate::y\" r#\"crate::\"z\"# 'c' '\\'' <'life> /* crate::w */ c",
    );
    assert!(!code.contains("crate::"), "{code}");
    assert!(code.contains('a') && code.contains("<'life>") && code.trim_end().ends_with('c'), "{code}");
}

#[test]
fn items_under_cfg_test_are_left_out() {
    let code = without_tests(
        "use a;\n#[cfg(test)]\nmod tests { fn x() { crate::y(); } }\nuse b;\n#[cfg(test)]\nmod more;\nuse c;",
    );
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["use", "a;", "use", "b;", "use", "c;"]);
}

#[test]
fn groups_name_the_head_of_each_branch() {
    let named = first_segments(
        "use crate::{gc::{Plan, plan}, image, runtime::X}; crate::events::emit(); my_crate::no();",
        "crate::",
    );
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["events", "gc", "image", "runtime"]);
}

#[test]
fn imports_are_read_branch_by_branch() {
    let (found, rest) = imports("pub use a::{b::C, self as d}; use e::*; fn user() { because_use (1); }");
    let import = |name: &str, path: &[&str], handed_on| Import {
        name: name.to_owned(),
        path: path.iter().map(|part| (*part).to_owned()).collect(),
        handed_on,
    };
    assert_eq!(found, [import("C", &["a", "b", "C"], true), import("d", &["a"], true), import("*", &["e"], false)]);
    assert!(rest.contains("fn user()"), "{rest}");
}

#[test]
fn paths_are_read_whole() {
    let found = paths("let x = crate::a::b(super::c::<T>::D, e.f); g::h!()");
    let spelled: Vec<String> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(spelled, ["crate::a::b", "super::c", "g::h"]);
}

#[test]
fn items_are_found_by_their_keywords() {
    let found = defined_items(
        "pub(crate) async fn one() {} struct Two<T>(T); const THREE: u8 = 3; impl Two<u8> { fn four() {} }",
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["THREE", "Two", "four", "one"]);
}
