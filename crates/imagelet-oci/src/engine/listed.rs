//! What a list and a status say of an image in the store.

use imagelet_core::{
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    runtime::{ImageDetails, JsonText, RuntimeError},
};

use crate::store::{ImageRecord, Store, storage_error};

/// Longest name of a user; longer ones no system has.
const USER_LENGTH_MAX: usize = 256;

pub(super) fn listed(store: &Store, record: &ImageRecord, names: &[String]) -> Image {
    let layers: u64 =
        record.diff_ids().iter().filter_map(|layer| store.layer(layer)).map(|layer| layer.disk_bytes).sum();
    let content = layers + store.blob_bytes(record);
    let (digests, tags): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| name.contains('@'));
    Image {
        id: record.image_id(),
        tags,
        digests,
        size: ByteSize(content + record.metadata_size),
        user: user(&record.user),
        spec: ImageSpec::new(record.id.clone()),
        pinned: false,
    }
}

/// All that is known of an image that is here. Reads its configuration from the disk.
pub(super) fn details(store: &Store, id: &ImageId) -> Result<Option<ImageDetails>, RuntimeError> {
    let Some((record, names)) = store.image(id) else { return Ok(None) };
    let bytes = store
        .image_file(id, "config.json")
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error))?;
    let image = listed(store, &record, &names);
    let mut details = match String::from_utf8(bytes).ok().and_then(JsonText::new) {
        Some(config) => ImageDetails::of_config(image, config),
        None => ImageDetails::bare(image),
    };
    for layer in &mut details.layers {
        layer.bytes = store.layer(&layer.diff_id).map(|layer| ByteSize(layer.disk_bytes));
    }
    let packed: u64 = record.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    details.compressed = Some(ByteSize(packed.saturating_add(record.metadata_size)));
    Ok(Some(details))
}

/// The user of a configuration: `USER`, `UID`, `USER:GROUP`. A number out of range is nobody (`reliability.md B065`).
pub(super) fn user(text: &str) -> ImageUser {
    let name = text.split(':').next().unwrap_or_default();
    if name.is_empty() {
        return ImageUser::Unset;
    }
    match name.parse::<i64>() {
        Ok(uid) if (0..=i64::from(u32::MAX)).contains(&uid) => ImageUser::Uid(uid),
        Ok(_) => ImageUser::Unset,
        // A number too long to read is no name either: a look-up of it might find root.
        Err(_) if name.trim_start_matches(['+', '-']).bytes().all(|byte| byte.is_ascii_digit()) => ImageUser::Unset,
        // Each list of images repeats it.
        Err(_) if name.len() > USER_LENGTH_MAX => ImageUser::Unset,
        Err(_) => ImageUser::Name(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_in_range_or_a_name() {
        for (text, wanted) in [
            ("", ImageUser::Unset),
            ("0", ImageUser::Uid(0)),
            ("1002:7", ImageUser::Uid(1002)),
            ("www-data", ImageUser::Name("www-data".into())),
            ("www-data:www", ImageUser::Name("www-data".into())),
            ("4294967296", ImageUser::Unset),
            ("-1", ImageUser::Unset),
            ("99999999999999999999999", ImageUser::Unset),
            ("-99999999999999999999999", ImageUser::Unset),
            ("+99999999999999999999999:0", ImageUser::Unset),
        ] {
            assert_eq!(user(text), wanted, "{text}");
        }
    }
}
