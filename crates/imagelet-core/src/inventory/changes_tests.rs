//! What a pass over an inventory finds changed, and what it then looks at.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::*;
use crate::{
    image::{ByteSize, ImageSpec, ImageUser},
    inventory::{HandedOut, Inventory, PinPattern, sandboxes::SandboxImages},
    runtime::{Container, ContainerState, Listing, Pod, RuntimeManager, Sandbox},
    testing::FakeRuntime,
};

/// Throws the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.next(of.len() as u64)).unwrap()]
    }
}

fn id(number: u64) -> String {
    format!("sha256:{:064x}", number * 0x1111_1111)
}

fn image(dice: &mut Dice, number: u64) -> Image {
    let tag = |dice: &mut Dice| format!("registry.example/{}:v{}", dice.one(&["a", "b", "t/c"]), dice.next(4));
    Image {
        id: ImageId::new(id(number)),
        tags: (0..dice.next(3)).map(|_| tag(dice)).collect(),
        digests: (0..dice.next(2)).map(|_| format!("registry.example/a@{}", id(100 + dice.next(9)))).collect(),
        size: ByteSize(dice.next(3)),
        user: ImageUser::Unset,
        spec: ImageSpec { runtime_handler: (*dice.one(&["", "", "", "kata"])).to_owned(), ..ImageSpec::default() },
        pinned: dice.next(20) == 0,
    }
}

/// What a node looks like at the next pass: most of it as before, in the same order or another.
fn turn(dice: &mut Dice, images: &mut Vec<Image>, pods: &mut Vec<Pod>, now: SystemTime) {
    for _ in 0..dice.next(3) {
        match dice.next(6) {
            0 if !images.is_empty() => drop(images.remove(usize::try_from(dice.next(images.len() as u64)).unwrap())),
            1 if !images.is_empty() => {
                let place = usize::try_from(dice.next(images.len() as u64)).unwrap();
                let other = image(dice, 0);
                images[place] = Image { id: images[place].id.clone(), spec: images[place].spec.clone(), ..other };
            }
            2 => images.reverse(),
            3 if dice.next(8) == 0 && !images.is_empty() => images.push(images[0].clone()),
            _ => {
                let number = dice.next(14);
                let image = image(dice, number);
                let is_new = images.iter().all(|other| other.key() != image.key());
                let place = usize::try_from(dice.next(images.len() as u64 + 1)).unwrap();
                images.splice(place..place, Some(image).filter(|_| is_new));
            }
        }
    }
    match dice.next(5) {
        0 if !pods.is_empty() => drop(pods.remove(usize::try_from(dice.next(pods.len() as u64)).unwrap())),
        1 | 2 => {
            let number = dice.next(1_000_000);
            let texts = [id(dice.next(14)), id(dice.next(14))[..20].to_owned(), "registry.example/a:v1".to_owned()];
            let container = Container {
                id: format!("container-{number}"),
                sandbox_id: "sandbox".into(),
                name: "main".into(),
                image: ImageSpec::new(dice.one(&texts).clone()),
                image_ref: dice.one(&texts).clone(),
                image_id: dice.one(&texts).clone(),
                state: ContainerState::Running,
                created_at: now - Duration::from_secs(dice.next(100)),
                labels: std::collections::BTreeMap::new(),
            };
            pods.push(Pod {
                uid: format!("pod-{}", dice.next(3)),
                name: format!("pod-{number}"),
                namespace: "default".into(),
                created_at: now,
                containers: vec![container],
                sandboxes: vec![Sandbox {
                    id: format!("sandbox-{number}"),
                    name: format!("pod-{number}"),
                    namespace: "default".into(),
                    uid: String::new(),
                    attempt: 0,
                    ready: true,
                    created_at: now,
                    runtime_handler: String::new(),
                }],
            });
        }
        _ => {}
    }
}

fn inventory() -> Inventory {
    let fake = Arc::new(FakeRuntime::new());
    let inventory = Inventory::open(RuntimeManager::new(fake.clone(), fake), None).unwrap();
    inventory.lock().leases.lasts = Duration::from_mins(5);
    inventory
}

/// All that a pass leaves, but what only the next one uses.
fn told(inventory: &Inventory) -> Vec<String> {
    let state = inventory.lock();
    let State { records, touches, released, watch, memory, leases, mounts, snapshot, dirty, .. } = &*state;
    let entries = snapshot.iter().flat_map(|snapshot| snapshot.entries.iter().zip(snapshot.entries.glances()));
    let entries = entries.map(|(entry, glance)| format!("{entry:?} {glance:?}"));
    let snapshot = snapshot.as_ref().map(|it| (it.taken_at, it.watched_since, it.containers, it.containers_vanished));
    let rest = [
        format!("{snapshot:?}{touches:?}{released:?}{watch:?}{mounts:?}{dirty} {:?}", leases.digest(0)),
        format!("{records:?}"),
        format!("{memory:?}"),
    ];
    entries.chain(rest).collect()
}

#[test]
fn a_pass_over_what_changed_leaves_what_a_pass_over_everything_leaves() {
    let (mut quick, mut whole, mut same) = (0, 0, 0);
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let (ours, theirs) = (inventory(), inventory());
        let both = [&ours, &theirs];
        let (mut images, mut pods) = (Vec::new(), Vec::new());
        // The list of a store that keeps it until something changes.
        let mut kept: Option<(Vec<Image>, Listing)> = None;
        let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for step in 0..40 {
            now += Duration::from_secs(*dice.one(&[0, 1, 30, 90, 600, 4_000, 90_000, 3_000_000]));
            turn(&mut dice, &mut images, &mut pods, now);
            match dice.next(8) {
                0 => {
                    let key = ImageKey::new(ImageId::new(id(dice.next(14))), String::new());
                    let user = Some("default/somebody".to_owned()).filter(|_| dice.next(2) == 0);
                    let handed = HandedOut { key, user, pulled: Some((ByteSize(7), Duration::from_secs(1))) };
                    for inventory in both {
                        inventory.hand_out(&handed, now);
                    }
                }
                1 => {
                    let id = ImageId::new(id(dice.next(14)));
                    let pod = format!("pod-{}", dice.next(3));
                    for inventory in both {
                        inventory.lock().leases.lease(&id, &pod, now);
                    }
                }
                2 if dice.next(4) == 0 => {
                    let pin: PinPattern = "registry.example/b*".parse().unwrap();
                    let pins = if dice.next(2) == 0 { vec![pin] } else { Vec::new() };
                    for inventory in both {
                        inventory.set_configured_pins(pins.clone());
                    }
                }
                3 if dice.next(4) == 0 => {
                    let id = ImageId::new(id(dice.next(14)));
                    for inventory in both {
                        inventory.adopt(&id, Some(now - Duration::from_hours(5)));
                    }
                }
                _ => {}
            }
            let mut mounts = std::collections::BTreeMap::new();
            for container in pods.iter().flat_map(|pod: &Pod| &pod.containers) {
                let mounted = container.id.ends_with('7').then(|| id(3)).into_iter().collect();
                mounts.insert(container.id.clone(), mounted);
            }
            let of = |sandbox: &Sandbox| (sandbox.id.clone(), sandbox.id.ends_with('3').then(|| id(5)));
            let sandboxes: SandboxImages = pods.iter().flat_map(|pod: &Pod| &pod.sandboxes).map(of).collect();
            let survey = |images| Survey {
                images,
                pods: pods.clone(),
                mounts: mounts.clone(),
                sandboxes: sandboxes.clone(),
                missing_are_gone: seed % 2 == 0,
            };
            let listed = || images.iter().cloned().collect::<Listing>();
            let listing = match kept.take_if(|(before, _)| *before == images) {
                Some((_, listing)) if dice.next(4) > 0 => {
                    same += 1;
                    listing
                }
                _ => listed(),
            };
            kept = (dice.next(3) > 0).then(|| (images.clone(), listing.clone()));
            // Somebody may still look at what the pass before found.
            let _held = (dice.next(3) == 0).then(|| ours.snapshot());
            theirs.lock().trace = None;
            if ours.lock().trace.is_some() {
                quick += 1;
            } else {
                whole += 1;
            }
            ours.lock().absorb(survey(listing), now, now);
            theirs.lock().absorb(survey(listed()), now, now);
            let (ours, theirs) = (told(&ours), told(&theirs));
            assert_eq!(ours.len(), theirs.len(), "seed {seed}, step {step}");
            for (ours, theirs) in ours.into_iter().zip(theirs) {
                assert_eq!(ours, theirs, "seed {seed}, step {step}");
            }
        }
    }
    assert!(quick > 10 * whole && same > 100, "{quick} {whole} {same}");
}
