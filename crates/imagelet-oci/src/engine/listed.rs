//! What a list and a status say of an image in the store.

use imagelet_core::{
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser, split_names},
    runtime::{ImageDetails, JsonText, RuntimeError},
};

use crate::store::{ImageRecord, Store, storage_error};

pub(super) fn listed(store: &Store, record: &ImageRecord, names: &[String]) -> Image {
    let layers: u64 =
        record.diff_ids().iter().filter_map(|layer| store.layer(layer)).map(|layer| layer.disk_bytes).sum();
    let content = layers + store.blob_bytes(record);
    let (tags, digests) = split_names(names.iter().map(String::as_str));
    Image {
        id: record.image_id(),
        tags,
        digests,
        size: ByteSize(content + record.metadata_size),
        user: ImageUser::of_config(&record.user),
        spec: ImageSpec::default(),
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
