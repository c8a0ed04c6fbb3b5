//! The details of one image: its configuration and the sizes of its layers.

use std::{path::Path, sync::Arc};

use imagelet_core::{
    image::{ByteSize, ImageId},
    runtime::{ImageDetails, JsonText, RuntimeError},
};

use crate::store::{Store, could_not};

pub(crate) fn details(store: &Store, id: &ImageId) -> Result<Option<ImageDetails>, RuntimeError> {
    let Some(((record, _), image)) = store.image(id).zip(store.listed_image(id)) else { return Ok(None) };
    let image = Arc::unwrap_or_clone(image);
    let bytes =
        store.image_file(id, "config.json").map_err(could_not("read the configuration of", Path::new(id.as_str())))?;
    let mut details = match (String::from_utf8(bytes).ok().and_then(JsonText::new), &record.pulled.artifact_type) {
        (Some(config), None) => ImageDetails::of_config(image, config),
        (config, Some(_)) => ImageDetails { config, ..ImageDetails::bare(image) },
        (None, None) => ImageDetails::bare(image),
    };
    for layer in &mut details.layers {
        layer.bytes = store.layer(&layer.diff_id).map(|layer| ByteSize(layer.disk_bytes));
    }
    let packed: u64 = record.pulled.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    details.compressed = Some(ByteSize(packed.saturating_add(record.metadata_size)));
    details.pulled = Some(record.pulled);
    Ok(Some(details))
}
