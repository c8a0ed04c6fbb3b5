//! Good images where the process may have little: many pulls at once with few descriptors.

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    case::{Bench, pull},
    child,
    image::{Image, Layer, TAR},
};

/// What a login shell gives to a program.
const DESCRIPTORS: u64 = 1024;
const PULLS: usize = 8;
const LAYERS: usize = 4;
const FOLDERS: usize = 4_000;

/// A tar of folders in pairs, one in the other, so that each second one is opened; `mark` makes it unlike any other.
pub(crate) fn folders(mark: &str, count: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..count / 2 {
        for path in [format!("{mark}-{number}"), format!("{mark}-{number}/below")] {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            header.set_mode(0o755);
            builder.append_data(&mut header, path, &b""[..]).expect("memory takes all");
        }
    }
    builder.into_inner().expect("memory takes all")
}

#[test]
fn eight_pulls_of_four_thousand_folders_a_layer_need_no_more_than_1024_descriptors() {
    child::alone("scarce::eight_pulls_of_four_thousand_folders_a_layer_need_no_more_than_1024_descriptors", async {
        setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) })
            .expect("limits may be lowered");
        let bench = Bench::with(|config| config.limits.expansion_free = 1 << 30).await;
        let names: Vec<String> = (0..PULLS)
            .map(|number| {
                let layers = (0..LAYERS).map(|layer| {
                    let tar = folders(&format!("{number}-{layer}"), FOLDERS);
                    Layer::packed(TAR, tar.clone(), &tar)
                });
                bench.registry.put(&format!("folders-{number}"), &Image::of(layers))
            })
            .collect();
        for outcome in join_all(names.iter().map(|name| pull(&bench.engine, name))).await {
            outcome.unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    });
}
