//! Images of the vectors, as a store keeps them and as the wire has them.

use imagelet_core::image::{ImageId, ImageSpec};

use super::v1;

/// An image of a vector's store as ours keeps it.
pub(crate) fn stored(image: &serde_json::Value) -> imagelet_core::image::Image {
    use imagelet_core::image::{ByteSize, Image, ImageUser, Reference, split_names};
    let names: Vec<String> = serde_json::from_value(image["references"].clone()).unwrap();
    // The vector's `r/x:1` is Docker's in full; a store keeps names in full only.
    let full: Vec<String> = names.iter().map(|name| name.parse::<Reference>().unwrap().to_string()).collect();
    let (tags, digests) = split_names(full.iter().map(String::as_str));
    Image {
        id: ImageId::new(image["id"].as_str().unwrap()),
        tags,
        digests,
        size: ByteSize(image["size"].as_u64().unwrap()),
        user: ImageUser::of_config(image["config_user"].as_str().unwrap_or_default()),
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    }
}

/// The message a vector expects; fields it leaves out are not set.
pub(crate) fn wire(image: &serde_json::Value) -> Option<v1::Image> {
    let texts = |key: &str| serde_json::from_value(image[key].clone()).unwrap_or_default();
    image.is_object().then(|| v1::Image {
        id: image["id"].as_str().unwrap().into(),
        repo_tags: texts("repo_tags"),
        repo_digests: texts("repo_digests"),
        size: image["size"].as_u64().unwrap(),
        uid: image["uid"].as_i64(),
        username: image["username"].as_str().unwrap_or_default().into(),
        ..v1::Image::default()
    })
}
