//! What a node is asked and what it answers: the documents of `-o json` and of the daemon's socket.
//!
//! Stable: fields are added, never renamed or removed, and readers skip what they do not know. Times are RFC 3339, sizes
//! are bytes, durations have their unit in the name, ids and names are as the store spells them.

use std::path::PathBuf;

use imagelet_core::inventory::NodeImage;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Hidden, laid_out};

documents! {
    PullRequest {
        image: String,
        /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
        policy: String,
        /// Exactly this user and password are tried.
        login: Option<Login>,
        /// `OS/ARCH`; absent is this machine.
        platform: Option<String>,
        pod: Option<PodName>,
        /// The field of the pod that names the image.
        field: String,
        /// The pod's pull secrets, in order.
        secrets: Vec<PullSecretText>,
    }
    Login {
        user: String,
        password: Option<Hidden>,
    }
    PodName {
        namespace: String,
        name: String,
        uid: String,
    }
    /// A secret with the credentials of registries.
    PullSecretText {
        namespace: String,
        name: String,
        uid: String,
        /// `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`; empty is the first.
        r#type: String,
        /// The docker configuration in it.
        docker_config: Option<Hidden>,
    }
    Pulled {
        /// As it was asked for.
        image: String,
        id: String,
        /// It was there before, so nothing was fetched.
        present: bool,
        /// What it occupies, where known.
        size: Option<u64>,
        /// How long the pull took, in milliseconds, without waiting for its turn.
        took_ms: u64,
        /// What is not as it should be although the image can be used: its registry is away.
        warning: Option<String>,
    }
    ListRequest {
        /// Leaves out what takes long with very many images and few look at: sizes alone and shared, and digests of
        /// images that have a tag.
        brief: bool,
    }
    ImageList {
        /// Sorted by name.
        images: Vec<ImageRow>,
    }
    ImageRow {
        id: String,
        /// The handler in whose store it is; empty is the default one.
        runtime_handler: String,
        /// Full names with tag.
        names: Vec<String>,
        /// Full names with digest.
        digests: Vec<String>,
        /// As the store lists it, shared layers counted in: what it occupies, or, as containerd does, its packed size.
        size: u64,
        /// What its removal frees, where the store knows.
        unique: Option<u64>,
        /// What it shares with other images, where the store knows.
        shared: Option<u64>,
        /// Since when it is here, as far as is known: when it was pulled or first seen.
        first_seen: Option<String>,
        /// When it was last in use or asked for.
        last_used: Option<String>,
        /// Containers and mounts that use it.
        in_use_by: Vec<String>,
        /// Patterns that pin it, or `runtime`.
        pinned_by: Vec<String>,
        /// How it came here: `pulled` by imagelet, `adopted` from another manager that pulled it, or `found`.
        origin: Option<String>,
        /// What the next collection would do with it and why, as a stable word; in answers to `df` alone.
        next_code: Option<String>,
        /// The same for people.
        next_reason: Option<String>,
    }
    InspectRequest {
        /// Name, id, or unique beginning of an id.
        image: String,
    }
    /// One image, or none.
    Inspected {
        /// Absent when there is no such image.
        image: Option<ImageRow>,
        /// What the embedded store knows beyond that: manifest, configuration, layers.
        #[serde(serialize_with = "laid_out")]
        details: Option<Box<RawValue>>,
    }
    UsageRequest {}
    Usage {
        /// The directory images are in.
        mountpoint: String,
        /// All bytes of its file system.
        capacity: u64,
        /// Bytes still free there.
        available: u64,
        /// Share in use, in percent, rounded up.
        used_percent: u8,
        /// Bytes all images take together, each shared layer once; where `images_certainty` is `claimed`, the sum of their
        /// sizes as the runtime lists them.
        images_size: u64,
        /// How sure that is: `exact`, `partial` or `claimed`.
        images_certainty: String,
        images_count: u64,
        /// Bytes that come free when everything goes that may: what `gc --all-unused` frees, as well as that is known.
        reclaimable: u64,
        /// How sure that is: `exact`, `partial` or `claimed`.
        certainty: String,
        /// Image by image.
        images: Vec<ImageRow>,
        /// What the embedded store knows beyond that: blobs, partial downloads.
        store: Option<serde_json::Value>,
    }
    RemoveRequest {
        /// Name, id, or unique beginning of an id.
        image: String,
    }
    /// An image, or a name, that was removed.
    Removed {
        id: String,
        /// The names that were removed.
        names: Vec<String>,
        /// Bytes given back to the disk, where known.
        freed: Option<u64>,
        /// Until when a lease held it.
        held_until: Option<String>,
        /// Patterns that pinned it.
        pinned_by: Vec<String>,
    }
    UntagRequest {
        image: String,
    }
    CollectRequest {
        /// Plan, remove nothing.
        dry_run: bool,
        /// Where to start, in percent; absent as configured.
        high: Option<u8>,
        /// Where to stop, in percent; absent as configured.
        low: Option<u8>,
        /// This many bytes, whatever the thresholds say.
        free: Option<u64>,
        /// All images that are neither used nor pinned.
        all_unused: bool,
        /// With `all_unused`: images that are younger than the minimum age, too.
        now: bool,
        /// Remove although the mode is `shadow`.
        enforce: bool,
    }
    /// What a collection did, or would do.
    Collected {
        /// Nothing was removed; this is a plan.
        dry_run: bool,
        /// Share of the disk in use before, in percent.
        used_percent_before: u8,
        /// And after, where something was removed.
        used_percent_after: Option<u8>,
        /// Collecting begins here, in percent.
        high_percent: u8,
        /// And ends here.
        low_percent: u8,
        /// Bytes wanted; absent when no room was wanted.
        wanted: Option<u64>,
        /// Bytes the removed images were listed with.
        claimed: u64,
        /// Bytes that the removals free, shared layers counted only where the last user of them goes.
        frees: u64,
        /// How sure that is: `exact`, `partial` or `claimed`.
        certainty: String,
        /// Bytes that could be freed if everything that may go went; absent in the kubelet's way, which does not plan.
        could_free: Option<u64>,
        /// Bytes the disk has gained, where measured.
        measured: Option<u64>,
        /// Every image, and what became of it.
        images: Vec<CollectedRow>,
        /// Everything went as planned, and the disk is still fuller than wanted.
        shortfall: Option<String>,
        /// What had to be freed at least was not: the disk is not below the high threshold, or less is free than asked for.
        out_of_reach: bool,
        failures: Vec<String>,
    }
    /// What became of one image.
    CollectedRow {
        id: String,
        names: Vec<String>,
        digests: Vec<String>,
        /// What it is listed with.
        size: u64,
        /// What its removal frees after those before it; absent where it stays, and in the kubelet's way.
        frees: Option<u64>,
        /// `keep`, `remove`, `removed` or `failed`.
        verdict: String,
        /// The machine's word for why; stable.
        code: String,
        /// What it rests on.
        inputs: serde_json::Value,
        reason: String,
    }
    PinRequest {
        /// A reference, a glob, a digest.
        pattern: String,
    }
    UnpinRequest {
        /// The pattern as it was pinned.
        pattern: String,
    }
    /// Whether pins changed.
    PinChanged {
        pattern: String,
        /// False: it was so before.
        changed: bool,
        /// Ids of the images that it holds, or held; absent where that is not known.
        images: Option<Vec<String>>,
    }
    PinsRequest {}
    Pins {
        /// In the order they were pinned.
        pins: Vec<PinRow>,
    }
    PinRow {
        pattern: String,
        /// Where it is removed: `operator` or `configuration`.
        owner: String,
        /// Ids of the images it holds now.
        images: Vec<String>,
    }
    MountRequest {
        image: String,
        directory: PathBuf,
        writable: bool,
        /// Set-id bits and capabilities act.
        suid: bool,
        /// Device nodes can be opened.
        dev: bool,
    }
    UnmountRequest {
        directory: PathBuf,
        /// Also one that is not seen here.
        force: bool,
    }
    Mounted {
        id: String,
        directory: PathBuf,
        writable: bool,
        /// Whether it is mounted now; after an unmount, at another place.
        remains: bool,
    }
    StatusRequest {}
    /// The node at a glance.
    Status {
        version: String,
        /// Where images are kept: `store DIR` or `runtime URI`.
        backend: String,
        /// What the threads that unpack layers may reach; absent where images are a runtime's.
        unpacking: Option<String>,
        /// How pulls come into the runtime; absent where images are in a store of our own, and in a command.
        runtime_import: Option<ImportStatus>,
        /// `daemon` or `command`.
        process: String,
        pid: u32,
        started_at: Option<String>,
        images: u64,
        /// The runtime does not answer, so the number above is not known.
        images_unknown: bool,
        /// How many of them in use.
        in_use: u64,
        /// Share of the disk in use, in percent; absent where it cannot be seen from here.
        used_percent: Option<u8>,
        /// Where images are, in the words of the kubelet's summary.
        image_fs: Option<FsRow>,
        /// Where writable layers are; the same numbers where that is the same place.
        container_fs: Option<FsRow>,
        /// `single`, `dedicated-images` or `split`: which of them share a disk with the kubelet's own files.
        disk_layout: Option<String>,
        /// The kubelet's eviction thresholds that are about disks.
        eviction: Vec<ThresholdRow>,
        /// `status.images` of the Node, as the kubelet makes it: the largest first, `nodeStatusMaxImages` of them.
        node_images: Vec<NodeImage>,
        /// Collecting starts here, in percent.
        gc_high_percent: u8,
        /// And stops here.
        gc_low_percent: u8,
        /// `enforce`, or `shadow`: what is chosen is reported and not removed.
        gc_mode: String,
        /// The last collection since the start.
        last_collection: Option<LastCollection>,
        /// How the plans of shadow mode compare with what happened.
        shadow: Option<ShadowRow>,
        /// Decisions that did not reach the log on disk since the start.
        decisions_lost: u64,
        /// Pulls that run or wait.
        pulls: Vec<PullRow>,
        /// Images in back-off.
        held_back: Vec<HeldBackRow>,
        /// Registries that are not asked at present.
        registries: Vec<OpenCircuitRow>,
        /// How long the images of pods took, since the start; the latest first.
        pod_starts: Vec<PodStartRow>,
        /// What went wrong when asking; the rest is good.
        problems: Vec<String>,
    }
    /// A file system, in the words of the kubelet's summary; what is absent is unknown.
    FsRow {
        time: Option<String>,
        /// Bytes an ordinary user can still write.
        available_bytes: Option<u64>,
        capacity_bytes: Option<u64>,
        /// Bytes that images, or writable layers, take.
        used_bytes: Option<u64>,
        /// Inodes still free.
        inodes_free: Option<u64>,
        inodes: Option<u64>,
        /// Inodes that images, or writable layers, take.
        inodes_used: Option<u64>,
    }
    /// An eviction threshold of the kubelet's.
    ThresholdRow {
        /// Of what.
        signal: String,
        /// The node is short when less than this is available: a share of all, or an amount.
        less_than: String,
        /// For how long it may be; absent is not at all.
        grace_seconds: Option<u64>,
        /// It is now.
        met: bool,
        /// What the kubelet then reclaims before it evicts a pod, in order.
        reclaims: Vec<String>,
    }
    /// A collection that ended.
    LastCollection {
        at: Option<String>,
        /// The trigger: `timer`, `command`, `pull`, `pressure`.
        by: String,
        /// `nothing`, `removed`, `short`, `failed` or `shadow`.
        outcome: String,
        /// Images removed; in shadow mode those that would have been.
        images: u64,
        /// Their bytes as listed.
        claimed: u64,
        /// Bytes the disk has gained, where measured.
        measured: Option<u64>,
        took_ms: u64,
        failure: Option<String>,
    }
    /// The plans of shadow mode, and what happened.
    ShadowRow {
        /// Collections compared with what then happened.
        compared: u64,
        /// Images that were removed as planned.
        agreed: u64,
        /// Images that went although shadow mode would have kept them.
        kept_in_vain: u64,
        kept_in_vain_bytes: u64,
        /// Images of those that came back since.
        came_back: u64,
        /// Their bytes: what would not have been pulled again.
        saved_bytes: u64,
        /// Images that shadow mode would remove now.
        still_there: u64,
        still_there_bytes: u64,
    }
    PullRow {
        image: String,
        /// `running`, `waiting-for-slot` or `waiting-for-rate`.
        state: String,
        /// Its place among those that wait, from 1; absent once it runs.
        position: Option<usize>,
        /// The highest priority of its callers.
        priority: i32,
        for_ms: u64,
        /// How many callers share it.
        askers: usize,
    }
    HeldBackRow {
        image: String,
        /// Until it may be tried again, in milliseconds.
        remaining_ms: u64,
        failure: String,
    }
    /// A registry that is not asked at present.
    OpenCircuitRow {
        /// Host and port.
        registry: String,
        /// Which pulls wait: `all-pulls`, those with some `credentials`, or those of some `images`.
        pulls: String,
        /// What went wrong last; see `docs/errors.md`.
        class: String,
        /// How often in a row.
        failures: u32,
        /// When the next attempt is let through.
        next_attempt_at: Option<String>,
        /// How long that is from now; zero while an attempt is under way.
        remaining_seconds: u64,
    }
    /// How pulls come into a runtime.
    ImportStatus {
        /// `runtimeImport` as configured: `auto`, `never` or `require`.
        mode: String,
        /// The decision for a pull without an obstacle of its own: `import`, `forward` or `refuse`.
        decision: String,
        /// Why no pull is imported, as a stable word.
        code: Option<String>,
        /// The same for people.
        reason: Option<String>,
        runtime: Option<String>,
        snapshotter: Option<String>,
        root: Option<String>,
        staging: Option<String>,
        /// Folders of registry settings that the runtime reports; absent where it reports none.
        registry_folders: Option<Vec<String>>,
        /// The last pulls, the oldest first.
        recent: Vec<PullWayRow>,
    }
    PullWayRow {
        at: Option<String>,
        /// The name it was asked for by.
        image: String,
        /// `imported` or `forwarded`.
        way: String,
        /// Why it was forwarded, as a stable word.
        code: Option<String>,
        /// The same for people.
        reason: String,
        took_ms: u64,
        failure: Option<String>,
    }
    /// How long the images of one pod took.
    PodStartRow {
        namespace: String,
        pod: String,
        uid: String,
        /// The images that were pulled for it, as it spells them.
        images: Vec<String>,
        /// When the first pull began.
        began_at: Option<String>,
        /// From then to the moment its last image was there; so far, while it is not over.
        took_seconds: f64,
        /// How much of that was pulling.
        pulling_seconds: f64,
        /// Whether it is over.
        over: bool,
    }
}
