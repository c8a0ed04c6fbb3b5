//! Requests to a node and their replies: the documents of `-o json` and of the daemon's socket.

use std::{collections::BTreeMap, path::PathBuf};

use imagelet_core::{
    inventory::NodeImage,
    ports::{ArchivePlace, Finding},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    events::RemovedForPull,
    fields::{Hidden, laid_out},
};
use crate::failure::Failure;

api_documents! {
    PullRequest {
        image: String,
        /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
        policy: String,
        /// The only credential that the pull tries.
        login: Option<Login>,
        /// `OS/ARCH`; absent means this machine.
        platform: Option<String>,
        pod: Option<PodName>,
        field: String,
        secrets: Vec<PullSecretText>,
    }
    Login {
        user: String,
        #[cfg_attr(test, schemars(skip))]
        password: Option<Hidden>,
    }
    PodName {
        namespace: String,
        name: String,
        uid: String,
    }
    PullSecretText {
        namespace: String,
        name: String,
        uid: String,
        /// `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`; empty means the first.
        r#type: String,
        #[cfg_attr(test, schemars(skip))]
        docker_config: Option<Hidden>,
    }
    Pulled {
        image: String,
        id: String,
        /// The image was present; nothing was fetched.
        present: bool,
        size: Option<u64>,
        /// Duration of the pull in milliseconds, without the wait for a slot.
        took_ms: u64,
        /// The image is usable, but something is wrong: its registry is unreachable.
        warning: Option<String>,
        /// Images that were removed, because the disk had no space for the pull; a daemon reports each as a step, and none here.
        removed: Vec<RemovedForPull>,
    }
    PodRequest {
        /// `Pod`, or the kind of the pod's controller: `Deployment`, `Job`.
        kind: String,
        pod: PodName,
        annotations: BTreeMap<String, String>,
        service_account: String,
        /// The handler of the runtime class; empty for the default.
        runtime_handler: String,
        /// The pull secrets that were readable, in the pod's order.
        secrets: Vec<PullSecretText>,
        secrets_unread: Vec<String>,
        /// Answered in this order.
        images: Vec<PodImageRequest>,
    }
    PodImageRequest {
        /// `container`, `init`, `sidecar`, `ephemeral` or `volume`; empty means `container`.
        role: String,
        name: String,
        /// Index in its list, from 0; distinguishes entries without a name.
        position: usize,
        image: String,
        /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
        policy: String,
        mounts: Vec<String>,
    }
    PodEnsured {
        kind: String,
        pod: PodName,
        images: Vec<PodImageRow>,
        /// Events of this pod during the call, oldest first.
        events: Vec<EventRow>,
    }
    PodImageRow {
        /// The field that names it: `spec.containers{NAME}`.
        field: String,
        role: String,
        image: String,
        /// As in the request; the default for the tag where the request has none.
        policy: String,
        /// Empty unless the image is usable.
        id: String,
        /// `present` or `pulled`; empty unless the image is usable.
        origin: String,
        size: Option<u64>,
        /// Duration of the pull in milliseconds, without the wait for a slot.
        took_ms: u64,
        /// The waiting reason of pod status; empty on success.
        reason: String,
        /// The message of pod status; empty after a pull.
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    EventRow {
        at: Option<String>,
        r#type: String,
        reason: String,
        message: String,
        /// The field of the pod; empty for the pod itself.
        field: String,
        /// A class of `docs/errors.md`; empty without a failure.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        hop: String,
    }
    ListRequest {
        /// Omits fields that are slow with very many images: unique and shared sizes, digests of tagged images.
        brief: bool,
    }
    ImageList {
        images: Vec<ImageRow>,
    }
    /// An image that was made of an artifact: of files, such as a model.
    ArtifactRow {
        /// As the artifact calls itself.
        r#type: String,
        /// Digest of the artifact's manifest.
        manifest: String,
        /// An archive counts as one.
        files: u64,
    }
    ImageRow {
        id: String,
        /// Empty means the default handler.
        runtime_handler: String,
        names: Vec<String>,
        digests: Vec<String>,
        /// As the store lists it, with shared layers: bytes on disk, or the compressed size for containerd.
        size: u64,
        /// Bytes that its removal frees, where known.
        unique: Option<u64>,
        /// Bytes that it shares with other images, where known.
        shared: Option<u64>,
        /// Time of the pull, or of the first pass that saw the image.
        first_seen: Option<String>,
        /// Last time of use or of a pull request.
        last_used: Option<String>,
        in_use_by: Vec<String>,
        /// Patterns that pin it, or `runtime`.
        pinned_by: Vec<String>,
        /// `NAMESPACE/POD` of the pods that are bound to the node and have no container of it yet.
        awaited_by: Vec<String>,
        /// `pulled` by imagelet, `adopted` from another manager, or `found`.
        origin: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        artifact: Option<ArtifactRow>,
        /// Code of the next collection's decision; only in replies to `df`.
        next_code: Option<String>,
        next_reason: Option<String>,
    }
    InspectRequest {
        image: String,
    }
    Inspected {
        /// Absent when no image matches.
        image: Option<ImageRow>,
        #[serde(serialize_with = "laid_out")]
        #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, serde_json::Value>>"))]
        details: Option<Box<RawValue>>,
    }
    UsageRequest {}
    Usage {
        mountpoint: String,
        capacity: u64,
        available: u64,
        used_percent: u8,
        /// Bytes of all images, each shared layer once; where `images_certainty` is `claimed`, the sum of the
        /// sizes that the runtime lists.
        images_size: u64,
        /// `exact`, `partial` or `claimed`.
        images_certainty: String,
        images_count: u64,
        /// The images that are artifacts, and their bytes as in `images_size`.
        artifacts_count: u64,
        artifacts_size: u64,
        /// Bytes that `gc --all-unused` frees.
        reclaimable: u64,
        /// `exact`, `partial` or `claimed`.
        certainty: String,
        images: Vec<ImageRow>,
        /// Blobs and partial downloads, from the embedded store.
        store: Option<serde_json::Value>,
    }
    RemoveRequest {
        image: String,
    }
    Removed {
        id: String,
        names: Vec<String>,
        freed: Option<u64>,
        /// End of the lease that protected it.
        held_until: Option<String>,
        pinned_by: Vec<String>,
        /// `NAMESPACE/POD` of the pods that waited for it.
        awaited_by: Vec<String>,
    }
    UntagRequest {
        image: String,
    }
    CollectRequest {
        dry_run: bool,
        high: Option<u8>,
        low: Option<u8>,
        /// Free this many bytes, whatever the thresholds are.
        free: Option<u64>,
        /// Remove all images that are neither used nor pinned.
        all_unused: bool,
        /// With `all_unused`: ignore the minimum age.
        now: bool,
        enforce: bool,
    }
    Collected {
        /// This is a plan; nothing was removed.
        dry_run: bool,
        used_percent_before: u8,
        /// Present where something was removed.
        used_percent_after: Option<u8>,
        high_percent: u8,
        low_percent: u8,
        /// Bytes to free; absent when no space is needed.
        wanted: Option<u64>,
        /// Sum of the listed sizes of the removed images.
        claimed: u64,
        /// Bytes that the removals free; a shared layer counts with its last user.
        frees: u64,
        /// `exact`, `partial` or `claimed`.
        certainty: String,
        /// Bytes that all allowed removals would free; absent in kubelet mode, which does not plan.
        could_free: Option<u64>,
        /// Change of free disk space, where measured.
        measured: Option<u64>,
        images: Vec<CollectedRow>,
        /// Every planned removal succeeded, and the disk is still above the goal.
        shortfall: Option<String>,
        /// The minimum was not freed: the disk is above the high threshold, or less is free than requested.
        out_of_reach: bool,
        /// That, where something was to be removed.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        failures: Vec<Failure>,
    }
    CollectedRow {
        id: String,
        names: Vec<String>,
        digests: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        artifact: Option<ArtifactRow>,
        size: u64,
        /// Bytes that its removal frees after the earlier removals; absent for kept images and in kubelet mode.
        frees: Option<u64>,
        /// `keep`, `remove`, `removed` or `failed`.
        verdict: String,
        code: String,
        inputs: serde_json::Value,
        reason: String,
    }
    PinRequest {
        pattern: String,
    }
    UnpinRequest {
        /// The pattern as it was pinned.
        pattern: String,
    }
    PinChanged {
        pattern: String,
        /// `false`: the pins were already in this state.
        changed: bool,
        /// Ids of the images that the pattern matches; absent where unknown.
        images: Option<Vec<String>>,
    }
    PinsRequest {}
    Pins {
        pins: Vec<PinRow>,
    }
    PinRow {
        pattern: String,
        /// Where the pin is removed: `operator`, `configuration`, or a set as `ImageSet NAMESPACE/NAME`.
        owner: String,
        images: Vec<String>,
    }
    MountRequest {
        image: String,
        directory: PathBuf,
        writable: bool,
        /// Honour set-id bits and capabilities.
        suid: bool,
        dev: bool,
    }
    UnmountRequest {
        directory: PathBuf,
        /// Also unmount one that this process does not see.
        force: bool,
    }
    ExportRequest {
        image: String,
        #[cfg_attr(test, schemars(skip))]
        place: ArchivePlace,
    }
    Exported {
        image: String,
        id: String,
        /// Digest of the index; of the manifest if the image has no index.
        digest: String,
        path: PathBuf,
        /// Bytes of all blobs in the archive.
        size: u64,
    }
    ImportRequest {
        #[cfg_attr(test, schemars(skip))]
        place: ArchivePlace,
        /// The name of the only image, instead of those in the archive.
        name: Option<String>,
        /// `OS/ARCH`; absent means this machine.
        platform: Option<String>,
        /// Pin each name.
        pin: bool,
    }
    Imported {
        images: Vec<ImportedRow>,
    }
    ImportedRow {
        /// Empty where the import failed.
        id: String,
        names: Vec<String>,
        /// The image was in the store before.
        present: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// The image is imported, and these names are not pinned.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pin_failures: Vec<Failure>,
    }
    VerifyRequest {
        /// Names, ids, or unique prefixes of ids; empty means all images.
        images: Vec<String>,
        repair: bool,
    }
    Verified {
        images: Vec<VerifiedImage>,
        /// Findings in the store's own files and blobs.
        store: VerifiedPart,
        damaged: bool,
    }
    VerifiedImage {
        id: String,
        names: Vec<String>,
        digests: Vec<String>,
        /// `ok`, `damaged` or `repaired`.
        result: String,
        /// Record, manifest, configuration and index.
        documents: VerifiedPart,
        layers: Vec<VerifiedLayer>,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    VerifiedLayer {
        /// Digest of the uncompressed layer.
        diff_id: String,
        blob: Option<String>,
        #[serde(flatten)]
        part: VerifiedPart,
        files: u64,
        bytes: u64,
        /// Files whose content only root may read; their metadata was compared.
        unread: u64,
    }
    VerifiedPart {
        /// `ok`, `damaged` or `repaired`.
        result: String,
        /// The first findings, with paths below the folder of the image or layer in the store.
        #[cfg_attr(test, schemars(skip))]
        findings: Vec<Finding>,
        more: u64,
    }
    StatusRequest {}
    Status {
        version: String,
        /// `store DIR` or `runtime URI`.
        backend: String,
        /// Sandbox of the threads that unpack layers; absent for a runtime's images.
        unpacking: Option<String>,
        /// How much of a pull runs at once, and the machine that it follows from. Does not apply to a runtime's own pulls.
        sizes: String,
        /// How pulls enter the runtime; absent for an embedded store, and in a command.
        runtime_import: Option<ImportStatus>,
        /// `daemon` or `command`.
        process: String,
        pid: u32,
        started_at: Option<String>,
        images: u64,
        /// The runtime does not answer, so the number of images is unknown.
        images_unknown: bool,
        in_use: u64,
        /// Share of the disk in use; absent where the disk is not visible from here.
        used_percent: Option<u8>,
        image_fs: Option<FsRow>,
        /// The file system of writable layers; equal to `image_fs` on one disk.
        container_fs: Option<FsRow>,
        /// `status.images` of the Node as the kubelet builds it: the largest first, at most `nodeStatusMaxImages`.
        #[cfg_attr(test, schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>"))]
        node_images: Vec<NodeImage>,
        /// Bytes a second below which a pull gives others what they wait for; 0: never.
        pull_rate_min: u64,
        gc_high_percent: u8,
        gc_low_percent: u8,
        /// `enforce`, or `shadow`: selected images are reported and not removed.
        gc_mode: String,
        last_collection: Option<LastCollection>,
        /// Decisions missing from the log on disk since the start.
        decisions_lost: u64,
        pulls: Vec<PullRow>,
        held_back: Vec<HeldBackRow>,
        registries: Vec<OpenCircuitRow>,
        /// Failures while the status was collected; the other fields are valid.
        problems: Vec<String>,
    }
    /// A file system of the kubelet's summary; absent fields are unknown.
    FsRow {
        time: Option<String>,
        /// Bytes that an unprivileged user can still write.
        available_bytes: Option<u64>,
        capacity_bytes: Option<u64>,
        /// Bytes of images or of writable layers.
        used_bytes: Option<u64>,
        inodes_free: Option<u64>,
        inodes: Option<u64>,
        /// Inodes of images or of writable layers.
        inodes_used: Option<u64>,
    }
    LastCollection {
        at: Option<String>,
        /// The trigger: `timer`, `command`, `pull`.
        by: String,
        /// `nothing`, `removed`, `short`, `failed` or `shadow`.
        outcome: String,
        /// Images removed; in shadow mode, images selected.
        images: u64,
        claimed: u64,
        /// Change of free disk space, where measured.
        measured: Option<u64>,
        took_ms: u64,
        failure: Option<String>,
    }
    PullRow {
        image: String,
        /// `running`, `waiting-for-slot` or `waiting-for-rate`.
        state: String,
        /// Position in the queue, from 1; absent once the pull runs.
        position: Option<usize>,
        /// The highest priority among its callers.
        priority: i32,
        for_ms: u64,
        askers: usize,
        /// What it does, in one line: `1.2 of 2.8 GB, 35 MB/s, about 45 s left`.
        progress: String,
        /// What a layer waits for that another pull holds, and which one; empty without such a wait.
        waits: String,
    }
    /// An image whose next pull is in back-off, with one of its failures.
    HeldBackRow {
        image: String,
        /// Until the next attempt of the first of the pods.
        remaining_ms: u64,
        failure: String,
        /// The pods that wait for it after this failure.
        pods: usize,
    }
    OpenCircuitRow {
        registry: String,
        /// Which pulls wait: `all-pulls`, those from a `repository`, those with certain `credentials`, or those of certain `images`.
        pulls: String,
        /// Class of the last failure; see `docs/errors.md`.
        class: String,
        failures: u32,
        next_attempt_at: Option<String>,
        /// Zero while an attempt runs.
        remaining_seconds: u64,
    }
    ImportStatus {
        /// `runtimeImport` as configured: `auto`, `never` or `require`.
        mode: String,
        /// For a pull without an obstacle of its own: `import`, `forward` or `refuse`.
        decision: String,
        code: Option<String>,
        reason: Option<String>,
        runtime: Option<String>,
        snapshotter: Option<String>,
        root: Option<String>,
        staging: Option<String>,
        /// Registry configuration folders that the runtime reports; absent where it reports none.
        registry_folders: Option<Vec<String>>,
        recent: Vec<PullRouteRow>,
    }
    PullRouteRow {
        at: Option<String>,
        image: String,
        /// `imported` or `forwarded`.
        way: String,
        code: Option<String>,
        reason: String,
        took_ms: u64,
        failure: Option<String>,
    }
}

impl PullRow {
    pub fn waits_for(&self) -> &'static str {
        if self.state == "waiting-for-rate" { "the rate limit" } else { "a free slot" }
    }
}
