//! Finds Rust's debug format in a text for users.

const MARKS: [&str; 7] = ["Some(", "Err(", "Other(", "Os {", "Custom {", "Error {", "CaUsedAsEndEntity"];

/// The first piece of Rust's debug format in a text: a variant or a structure with its fields.
pub fn debug_text(text: &str) -> Option<&str> {
    let mark = MARKS.into_iter().find(|mark| text.contains(mark));
    mark.or_else(|| {
        let mut words = text.split_inclusive(|character: char| !character.is_ascii_alphanumeric());
        words.find(|word| word.ends_with('(') && humps(word) > 1)
    })
}

/// The number of parts of a name in camel case. 0 for another word.
fn humps(word: &str) -> usize {
    let name = word.trim_end_matches('(');
    let is_name = name.starts_with(|first: char| first.is_ascii_uppercase());
    let pairs = name.as_bytes().windows(2);
    if is_name {
        1 + pairs.filter(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase()).count()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_with_fields_is_found_among_words() {
        for (text, found) in [
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", Some("Other(")),
            ("peer misbehaved: InvalidCertRequest", None),
            ("got HandshakePayload(x)", Some("HandshakePayload(")),
            ("Connection refused (os error 111)", None),
            ("check user and password (`imagelet login`)", None),
            ("call it RuntimeHandler (or not)", None),
        ] {
            assert_eq!(debug_text(text), found, "{text}");
        }
    }
}
