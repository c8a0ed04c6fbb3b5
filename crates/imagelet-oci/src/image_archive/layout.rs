//! The images of an OCI layout, by its `index.json`.

use std::collections::HashSet;

use imagelet_core::{error::RuntimeError, image::Digest};
use serde::{Deserialize, Serialize};

use super::ArchivedImage;
use crate::manifest::{Bounded, Descriptor, INDEX_ENTRIES_MAX, MANIFEST_BYTES_MAX, corrupt, object};

pub(crate) const INDEX: &str = "index.json";
pub(crate) const INDEX_BYTES_MAX: u64 = MANIFEST_BYTES_MAX;

#[derive(Deserialize)]
struct Index {
    manifests: Option<Bounded<LayoutEntry, INDEX_ENTRIES_MAX>>,
}

#[derive(Deserialize)]
struct LayoutEntry {
    #[serde(flatten)]
    descriptor: Descriptor,
    annotations: Option<LayoutName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayoutName {
    #[serde(rename = "io.containerd.image.name", skip_serializing_if = "Option::is_none")]
    pub(crate) full: Option<String>,
    #[serde(rename = "org.opencontainers.image.ref.name", skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<String>,
}

impl LayoutName {
    fn name(self) -> Option<String> {
        self.full.or(self.reference).filter(|name| !name.is_empty())
    }
}

/// Makes one image of all entries with the same name (for several platforms) or the same digest (with several names).
pub(super) fn images(bytes: &[u8]) -> Result<Vec<ArchivedImage>, RuntimeError> {
    let index: Index = object(bytes).map_err(|error| corrupt("`index.json` cannot be read").caused_by(error))?;
    let entries = index.manifests.unwrap_or_default().all("archive", "images")?;
    let mut named: Vec<(Option<String>, Vec<Descriptor>)> = Vec::new();
    for LayoutEntry { descriptor, annotations } in entries {
        let name = annotations.unwrap_or_default().name();
        match named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, roots)) if roots.contains(&descriptor) => {}
            Some((_, roots)) => roots.push(descriptor),
            None => named.push((name, vec![descriptor])),
        }
    }
    let mut images: Vec<ArchivedImage> = Vec::new();
    let in_names: HashSet<Digest> = named
        .iter()
        .filter(|(name, _)| name.is_some())
        .flat_map(|(_, roots)| roots)
        .map(|it| it.digest.clone())
        .collect();
    for (name, mut roots) in named {
        // An entry without a name is dropped if a named entry has the same digest.
        roots.retain(|root| name.is_some() || !in_names.contains(&root.digest));
        match images.iter_mut().find(|image| image.roots == roots) {
            Some(image) => image.names.extend(name),
            None if roots.is_empty() => {}
            None => images.push(ArchivedImage { names: name.into_iter().collect(), roots }),
        }
    }
    if images.is_empty() {
        return Err(corrupt("`index.json` lists no image"));
    }
    Ok(images)
}

pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm().name(), digest.hex())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_one_name_are_platforms_and_entries_of_one_digest_are_names() {
        let (one, two) = (Digest::of(b"1").to_string(), Digest::of(b"2").to_string());
        let entry = |digest: &str, full: Option<&str>, reference: Option<&str>| {
            let name = LayoutName { full: full.map(Into::into), reference: reference.map(Into::into) };
            json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1, "annotations": name})
        };
        let full = Some("reg.io/a:v1");
        for (entries, expected) in [
            (vec![entry(&one, full, Some("v1"))], vec![(vec!["reg.io/a:v1"], 1)]),
            (vec![entry(&one, None, Some("v1"))], vec![(vec!["v1"], 1)]),
            (vec![entry(&one, full, None), entry(&two, full, None)], vec![(vec!["reg.io/a:v1"], 2)]),
            (vec![entry(&one, full, None), entry(&one, Some("b:v2"), None)], vec![(vec!["reg.io/a:v1", "b:v2"], 1)]),
            (
                vec![entry(&one, full, None), entry(&two, Some("b:v2"), None)],
                vec![(vec!["reg.io/a:v1"], 1), (vec!["b:v2"], 1)],
            ),
            (vec![entry(&one, None, None), entry(&two, None, None)], vec![(vec![], 2)]),
        ] {
            let found =
                images(json!({"schemaVersion": 2, "manifests": entries}).to_string().as_bytes()).expect("images");
            let found: Vec<_> = found
                .iter()
                .map(|image| (image.names.iter().map(String::as_str).collect::<Vec<_>>(), image.roots.len()))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_layout_without_images_or_with_too_many_or_too_deep_is_refused() {
        let entry = json!({"digest": Digest::of(b"1").as_str(), "size": 1});
        let many = json!({"manifests": vec![entry; INDEX_ENTRIES_MAX + 1]}).to_string();
        let deep = format!("{{\"x\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        for (text, why) in [
            ("{}", "no image"),
            ("[]", "cannot be read"),
            (&many, "more than 1000"),
            (&deep, "deep"),
            (r#"{"manifests":[{"digest":"sha256:../../x","size":1}]}"#, "cannot be read"),
            (r#"{"manifests":[{"size":1}]}"#, "cannot be read"),
        ] {
            let error = images(text.as_bytes()).expect_err(why);
            assert!(error.chain().contains(why), "{}", error.chain());
        }
    }
}
