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
