//! Reads the images of sandboxes from verbose responses: containerd and CRI-O use the same two keys.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use super::container::SandboxImage;
use crate::runtime::details::value_or_none;

/// Longest JSON text read: the runtime's whole configuration, or a sandbox with its OCI specification.
const JSON_BYTES_MAX: usize = 4 << 20;
const NAME_BYTES_MAX: usize = 1024;

#[derive(Default, Deserialize)]
#[serde(default)]
struct SandboxInfo {
    #[serde(deserialize_with = "value_or_none")]
    image: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    #[serde(deserialize_with = "value_or_none")]
    sandbox_image: Option<String>,
}

impl SandboxImage {
    /// Reads the verbose status of an existing sandbox.
    pub fn of_info(info: &BTreeMap<String, String>) -> Self {
        let image = read::<SandboxInfo>(info, "info").image;
        name(image).map_or(Self::Unknown, Self::Named)
    }
}

/// The image for new sandboxes in a runtime's verbose status; `None` where it is not reported.
pub fn default_sandbox_image(info: &BTreeMap<String, String>) -> Option<String> {
    name(read::<RuntimeConfig>(info, "config").sandbox_image)
}

/// Decodes the JSON text of a key; an invalid or too long text counts as empty.
fn read<T: Default + DeserializeOwned>(info: &BTreeMap<String, String>, key: &str) -> T {
    let text = info.get(key).filter(|text| text.len() <= JSON_BYTES_MAX);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn name(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty() && text.len() <= NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(key: &str, text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), text.to_owned())])
    }

    #[test]
    fn containerd_and_cri_o_report_the_images_of_sandboxes() {
        let containerd = r#"{"pid":7,"image":"registry.k8s.io/pause:3.6","snapshotKey":"s","runtimeSpec":{"a":[]}}"#;
        let named = SandboxImage::Named("registry.k8s.io/pause:3.6".to_owned());
        assert_eq!(SandboxImage::of_info(&info("info", containerd)), named);
        let status = r#"{"containerd":{"snapshotter":"overlayfs"},"sandboxImage":"registry.k8s.io/pause:3.6"}"#;
        assert_eq!(default_sandbox_image(&info("config", status)).as_deref(), Some("registry.k8s.io/pause:3.6"));
    }

    #[test]
    fn a_damaged_report_names_no_image() {
        let long = format!(r#"{{"image":"{0}","sandboxImage":"{0}"}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        let huge = format!(r#"{{"image":"a","sandboxImage":"a","pad":"{}"}}"#, "x".repeat(JSON_BYTES_MAX));
        let deep = "[".repeat(100_000);
        for text in ["", "x", "[]", "7", "{}", r#"{"image":7,"sandboxImage":[]}"#, r#"{"image":"","sandboxImage":""}"#]
            .into_iter()
            .chain([long.as_str(), &huge, &deep])
        {
            assert_eq!(SandboxImage::of_info(&info("info", text)), SandboxImage::Unknown, "{text:.80}");
            assert_eq!(default_sandbox_image(&info("config", text)), None, "{text:.80}");
        }
        assert_eq!(SandboxImage::of_info(&BTreeMap::new()), SandboxImage::Unknown);
    }
}
