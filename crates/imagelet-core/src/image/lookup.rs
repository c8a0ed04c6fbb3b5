//! Finds the present image for a text: an id, a name, or an id prefix (`docs/spec/cri.md §5.1`).

use super::{
    Digest, ImageId, Reference,
    digest::is_lower_hex,
    reference::{Parts, parts_of_full_name},
};

const ID_PREFIX_LENGTH_MIN: usize = 3;
const ID_LENGTH: usize = 64;

pub trait ImageNames {
    fn has(&self, id: &ImageId) -> bool;

    /// The image with this normalised name (`docker.io/library/busybox:latest`, `r.example/a@sha256:…`).
    fn named(&self, name: &str) -> Option<ImageId>;

    /// The first two images whose ids have this prefix. The prefix includes `sha256:`.
    fn beginning(&self, prefix: &str) -> [Option<ImageId>; 2];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no image specified")]
    Empty,
    #[error("it is the beginning of several image ids")]
    Ambiguous,
}

/// Finds the image for a text. `None`: no present image matches. A whole digest is only compared with ids, so a
/// manifest digest finds nothing. Next, the text is compared as a name, normalised by Docker's rules; if the name has a
/// digest, its tag is ignored. Last, the text is compared as an id prefix.
pub fn look_up(text: &str, images: &dyn ImageNames) -> Result<Option<ImageId>, LookupError> {
    if text.is_empty() {
        return Err(LookupError::Empty);
    }
    if text.parse::<Digest>().is_ok() {
        return Ok(Some(ImageId::new(text)).filter(|id| images.has(id)));
    }
    let name = text.parse::<Reference>().ok().map(|reference| reference.canonical().to_string());
    if let Some(found) = name.and_then(|name| images.named(&name)) {
        return Ok(Some(found));
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    if !(ID_PREFIX_LENGTH_MIN..=ID_LENGTH).contains(&digits.len()) || !digits.bytes().all(is_lower_hex) {
        return Ok(None);
    }
    match images.beginning(&format!("sha256:{digits}")) {
        [Some(_), Some(_)] => Err(LookupError::Ambiguous),
        [found, _] => Ok(found),
    }
}

/// Splits names into names with a tag and names with a digest. Drops other names.
pub fn split_names<'a>(names: impl IntoIterator<Item = &'a str>) -> (Vec<String>, Vec<String>) {
    let (mut tags, mut digests) = (Vec::new(), Vec::new());
    for name in names {
        match parts_of_full_name(name) {
            Some(Parts { digest: Some(_), .. }) => digests.push(name.to_owned()),
            Some(Parts { tag: Some(_), .. }) => tags.push(name.to_owned()),
            _ => {}
        }
    }
    tags.sort_unstable();
    digests.sort_unstable();
    (tags, digests)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use imagelet_vectors::{VectorRun, go_quoted, vectors, vectors_document};
    use serde_json::{Value, json};

    use super::*;

    /// The images and names of a vector.
    struct Table(BTreeMap<ImageId, Vec<String>>);

    impl Table {
        fn of_ids(ids: &Value) -> Self {
            Self(ids.as_array().unwrap().iter().map(|id| (ImageId::new(id.as_str().unwrap()), Vec::new())).collect())
        }

        fn of_images(images: &Value) -> Self {
            let names = |image: &Value| serde_json::from_value(image["references"].clone()).unwrap();
            let images = images.as_array().unwrap().iter();
            Self(images.map(|image| (ImageId::new(image["id"].as_str().unwrap()), names(image))).collect())
        }
    }

    impl ImageNames for Table {
        fn has(&self, id: &ImageId) -> bool {
            self.0.contains_key(id)
        }
        fn named(&self, name: &str) -> Option<ImageId> {
            let mut images = self.0.iter();
            images.find(|(_, names)| names.iter().any(|known| known == name)).map(|(id, _)| id.clone())
        }
        fn beginning(&self, prefix: &str) -> [Option<ImageId>; 2] {
            let mut found = self.0.keys().filter(|id| id.as_str().starts_with(prefix)).cloned();
            [found.next(), found.next()]
        }
    }

    #[test]
    fn names_and_ids_resolve_as_the_vectors_say() {
        let document = vectors_document("cri-local-resolve.json");
        let table = Table::of_images(&document["store"]);
        let cases = vectors("cri-local-resolve.json");
        assert_eq!(cases.len(), 22);
        for case in cases {
            let query = case["input"]["query"].as_str().unwrap();
            let found = look_up(query, &table).unwrap_or_else(|error| panic!("{query}: {error}"));
            assert_eq!(found.as_ref().map(ImageId::as_str), case["expected"]["id"].as_str(), "{query}");
            assert_eq!(found.is_none(), case["expected"]["error"] == "not found", "{query}");
        }
    }

    #[test]
    fn beginnings_of_ids_resolve_as_the_vectors_say() {
        let document = vectors_document("cri-truncated-id.json");
        let mut run = VectorRun::once("cri-truncated-id.json", |_| true);
        while let Some(case) = run.next_case() {
            let table = Table::of_ids(case.input.get("store").unwrap_or(&document["store"]));
            let kind = match look_up(case.input["query"].as_str().unwrap(), &table) {
                Ok(Some(id)) => {
                    run.compare(&case, &json!({"id": id.as_str()}));
                    continue;
                }
                Ok(None) => "not found",
                Err(LookupError::Empty) => "empty",
                Err(error) => panic!("{}: {error}", case.name),
            };
            // For some cases the vectors only say that they fail.
            let has_kind = case.expected.get("error_kind").is_some();
            let found = if has_kind { json!({"error": true, "error_kind": kind}) } else { json!({"error": true}) };
            run.compare(&case, &found);
        }
        run.end();
    }

    #[test]
    fn a_beginning_of_several_ids_is_ambiguous_and_one_too_short_is_nothing() {
        let table = Table::of_ids(&serde_json::json!([
            format!("sha256:abc{}", "0".repeat(61)),
            format!("sha256:abd{}", "0".repeat(61)),
            format!("sha256:abd1{}", "0".repeat(60)),
        ]));
        assert_eq!(look_up("abd", &table), Err(LookupError::Ambiguous));
        assert_eq!(look_up("sha256:abd", &table), Err(LookupError::Ambiguous));
        assert!(look_up("abc", &table).unwrap().is_some());
        for text in ["ab", "sha256:ab", "ABC", "abx", "sha512:abc"] {
            assert_eq!(look_up(text, &table), Ok(None), "{}", go_quoted(text));
        }
        let twice = Table(BTreeMap::from([
            (ImageId::new(format!("sha256:abc{}", "0".repeat(61))), vec![]),
            (ImageId::new(format!("sha256:{}", "7".repeat(64))), vec!["docker.io/library/abc:latest".to_owned()]),
        ]));
        let named = look_up("abc", &twice).unwrap().unwrap();
        assert!(named.as_str().starts_with("sha256:777"), "a name comes before the beginning of an id");
    }

    #[test]
    fn names_split_as_the_vectors_say() {
        let cases = vectors("cri-references.json");
        assert_eq!(cases.len(), 3);
        let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            if input["function"] == "split" {
                let references = texts(&input["references"]);
                let (tags, digests) = split_names(references.iter().map(String::as_str));
                assert_eq!(tags, texts(&expected["repo_tags"]));
                assert_eq!(digests, texts(&expected["repo_digests"]));
                continue;
            }
            let reference: Reference = input["reference"].as_str().unwrap().parse().unwrap();
            let digest: Digest = input["digest"].as_str().unwrap().parse().unwrap();
            let (tag, by_digest) = reference.names_of(&digest);
            assert_eq!(by_digest, expected["repo_digest"].as_str().unwrap());
            assert_eq!(tag.unwrap_or_default(), expected["repo_tag"].as_str().unwrap());
        }
    }
}
