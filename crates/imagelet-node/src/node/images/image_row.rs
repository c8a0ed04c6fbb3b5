//! The row of one image.

use std::{collections::BTreeMap, iter, time::SystemTime};

use imagelet_core::{
    disks::FsStats,
    image::{Artifact, Digest, Image, ImageId, counted},
    inventory::{ImageEntry, ImageOrigin},
    ports::{ImageDetails, LayerShare},
    text::file_time,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::api::{ArtifactRow, FsRow, ImageRow, moment};

pub const USES_UNKNOWN: &str = "unknown: the runtime does not answer";

pub(super) type Shares<'a> = BTreeMap<&'a ImageId, LayerShare>;

impl ImageRow {
    /// The tags, or the digests of an image without a tag.
    pub fn shown_names(&self) -> &[String] {
        if self.names.is_empty() { &self.digests } else { &self.names }
    }
}

impl From<&Artifact> for ArtifactRow {
    fn from(Artifact { kind, manifest, files }: &Artifact) -> Self {
        Self { r#type: kind.clone(), manifest: manifest.to_string(), files: *files }
    }
}

impl ArtifactRow {
    pub fn summary(&self) -> String {
        format!("{}, {}", self.r#type, counted(self.files, "file"))
    }
}

impl From<&FsStats> for FsRow {
    fn from(stats: &FsStats) -> Self {
        let disk = stats.disk.as_ref();
        Self {
            time: jiff::Timestamp::try_from(stats.measured_at).ok().map(|time| time.to_string()),
            available_bytes: disk.map(|disk| disk.available.0),
            capacity_bytes: disk.map(|disk| disk.capacity.0),
            used_bytes: Some(stats.used.0),
            inodes_free: disk.and_then(|disk| disk.inodes_free),
            inodes: disk.and_then(|disk| disk.inodes),
            inodes_used: stats.inodes_used,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoredDetails<'a> {
    id: &'a str,
    manifest: &'a str,
    platform: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<&'a str>,
    layers: Vec<StoredLayer<'a>>,
    pulled_at: Option<String>,
    config: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoredLayer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    /// Empty: the digest of the layer's blob is unknown.
    blob: &'a str,
    size: u64,
    diff_id: &'a str,
    media_type: &'a str,
}

pub(crate) fn details_of(details: &ImageDetails) -> Option<Box<RawValue>> {
    let pulled = details.pulled.as_ref()?;
    let paths = details.layers.iter().map(|layer| layer.path.as_deref()).chain(iter::repeat(None));
    let layers = pulled.layers.iter().zip(paths).map(|(layer, path)| StoredLayer {
        path,
        blob: layer.blob.as_ref().map_or("", Digest::as_str),
        size: layer.size,
        diff_id: layer.diff_id.as_str(),
        media_type: &layer.media_type,
    });
    let details = StoredDetails {
        id: details.image.id.as_str(),
        manifest: pulled.digest.as_str(),
        platform: &pulled.platform,
        artifact_type: pulled.artifact.as_ref().map(|artifact| artifact.kind.as_str()),
        layers: layers.collect(),
        pulled_at: file_time(pulled.at).and_then(moment),
        config: serde_json::from_str(details.config.as_ref()?.as_str()).ok()?,
    };
    serde_json::value::to_raw_value(&details).ok()
}

pub(crate) fn row(entry: &ImageEntry, shares: &Shares<'_>) -> ImageRow {
    ImageRow {
        first_seen: moment(here_since(entry)),
        last_used: entry.usage.times.last_used.and_then(moment),
        in_use_by: entry.usage.used_by.clone(),
        pinned_by: entry.pinned_by.clone(),
        awaited_by: entry.awaited_by.clone(),
        origin: Some(entry.usage.origin.name().to_owned()),
        ..row_without_uses(&entry.image, shares)
    }
}

/// The time at which the image arrived: the end of its pull or the first pass that lists it, whichever is earlier.
pub(crate) fn here_since(entry: &ImageEntry) -> SystemTime {
    let pulled = entry.usage.pulled.filter(|_| entry.usage.origin == ImageOrigin::Pulled);
    pulled.map_or(entry.first_seen(), |pulled| pulled.at.min(entry.first_seen()))
}

/// The row of an image while the uses of images are unknown. The image is reported as in use.
pub(crate) fn row_without_uses(image: &Image, shares: &Shares<'_>) -> ImageRow {
    let share = shares.get(&image.id);
    let (mut names, mut digests) = (image.tags.clone(), image.digests.clone());
    names.sort();
    digests.sort();
    ImageRow {
        id: image.id.to_string(),
        runtime_handler: image.spec.runtime_handler.clone(),
        names,
        digests,
        size: image.size.0,
        unique: share.map(|share| share.unique.0),
        shared: share.map(|share| share.shared.0),
        in_use_by: vec![USES_UNKNOWN.to_owned()],
        artifact: image.artifact.as_deref().map(ArtifactRow::from),
        ..ImageRow::default()
    }
}
