//! Confines the threads that read layers by Landlock: the thread that writes a layer can open files in its folder only.
//!
//! Landlock restricts a thread for ever, so each layer gets a new thread. The other files of the thread (such as the
//! layer's file list) are opened before the restriction. If the kernel has no Landlock, layers are unpacked unconfined.
//! If it has Landlock, a thread that cannot be confined does not start its work.

use std::{fmt, io, os::fd::BorrowedFd, thread};

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

const RIGHTS: ABI = ABI::V5;
/// The first version of the Landlock ABI that can allow links and renames between folders.
const REFER_SINCE: i32 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) enum AllowedFolder<'a> {
    Full(BorrowedFd<'a>),
    /// The thread can only read files in the folder. Landlock does not protect metadata: the unpacker sets it again.
    ReadOnly(BorrowedFd<'a>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Threads are confined, with this version of the Landlock ABI.
    Landlock(i32),
    /// Threads are not confined, for this reason.
    Absent(String),
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Landlock(abi) => write!(f, "confined to the layer's folder (Landlock ABI {abi})"),
            Self::Absent(reason) => write!(f, "not confined: {reason}"),
        }
    }
}

impl Confinement {
    pub(crate) fn of_this_machine() -> Self {
        let tried = thread::scope(|scope| scope.spawn(|| restrict(&[])).join());
        match tried {
            Ok(Ok(status)) => Self::by(&status.landlock),
            Ok(Err(error)) => Self::Absent(format!("Landlock failed: {error}")),
            Err(_) => Self::Absent("Landlock failed".into()),
        }
    }

    fn by(status: &LandlockStatus) -> Self {
        match status {
            LandlockStatus::NotEnabled => Self::Absent("Landlock is switched off in this kernel".into()),
            LandlockStatus::Available { effective_abi, kernel_abi }
                if kernel_abi.unwrap_or(*effective_abi as i32) >= REFER_SINCE =>
            {
                Self::Landlock(kernel_abi.unwrap_or(*effective_abi as i32))
            }
            _ => Self::Absent(
                "this kernel has no Landlock that allows links between folders; 5.19 and later have".into(),
            ),
        }
    }

    pub(crate) fn run<T: Send>(&self, folders: &[AllowedFolder<'_>], work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("layer".into()).spawn_scoped(scope, || {
                self.enter(folders)?;
                Ok(work())
            })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn enter(&self, folders: &[AllowedFolder<'_>]) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        if matches!(self, Self::Absent(_)) {
            return Ok(());
        }
        let status = restrict(folders).map_err(io::Error::other)?;
        if status.ruleset == RulesetStatus::NotEnforced {
            return Err(io::Error::other("the kernel did not confine the thread"));
        }
        Ok(())
    }
}

fn restrict(folders: &[AllowedFolder<'_>]) -> Result<RestrictionStatus, RulesetError> {
    let all = AccessFs::from_all(RIGHTS);
    let mut ruleset = Ruleset::default().handle_access(all)?.handle_access(AccessNet::from_all(RIGHTS))?.create()?;
    for folder in folders {
        let rights = match folder {
            AllowedFolder::Full(_) => all,
            AllowedFolder::ReadOnly(_) => AccessFs::ReadFile.into(),
        };
        let (AllowedFolder::Full(folder) | AllowedFolder::ReadOnly(folder)) = folder;
        ruleset = ruleset.add_rule(PathBeneath::new(folder, rights))?;
    }
    ruleset.restrict_self()
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, os::fd::AsFd as _};

    use super::*;

    /// What a thread can do outside its folder and in it.
    fn tried(confinement: &Confinement, home: &std::path::Path) -> [bool; 6] {
        let root = fs::File::open(home.join("layer")).unwrap();
        let work = || {
            [
                fs::read(home.join("secret")).is_ok(),
                fs::write(home.join("beside"), "1").is_ok(),
                fs::hard_link(home.join("secret"), home.join("layer/stolen")).is_ok(),
                fs::File::open("/etc/passwd").is_ok(),
                std::process::Command::new("/bin/true").status().is_ok(),
                fs::create_dir_all(home.join("layer/a/b")).is_ok()
                    && fs::write(home.join("layer/a/f"), "1").is_ok()
                    && fs::hard_link(home.join("layer/a/f"), home.join("layer/a/b/f")).is_ok()
                    && fs::read(home.join("layer/a/b/f")).is_ok()
                    && fs::remove_dir_all(home.join("layer/a")).is_ok(),
            ]
        };
        confinement.run(&[AllowedFolder::Full(root.as_fd())], work).unwrap()
    }

    #[test]
    fn a_folder_for_reading_is_not_changed() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("layer")).unwrap();
        fs::write(home.path().join("layer/file"), "1").unwrap();
        let root = fs::File::open(home.path().join("layer")).unwrap();
        let file = home.path().join("layer/file");
        let work = || [fs::read(&file).is_ok(), fs::write(&file, "2").is_ok(), fs::remove_file(&file).is_ok()];
        let confinement = Confinement::of_this_machine();
        let tried = confinement.run(&[AllowedFolder::ReadOnly(root.as_fd())], work).unwrap();
        assert_eq!(tried, [true, false, false]);
    }

    #[test]
    fn a_confined_thread_reaches_its_folder_and_nothing_beside() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("layer")).unwrap();
        fs::write(home.path().join("secret"), "secret").unwrap();
        // A control: without confinement everything works.
        assert_eq!(tried(&Confinement::Absent(String::new()), home.path()), [true; 6]);
        for name in ["beside", "layer/stolen"] {
            fs::remove_file(home.path().join(name)).unwrap();
        }
        let confinement = Confinement::of_this_machine();
        let Confinement::Landlock(abi) = confinement else { panic!("the kernel has to have Landlock: {confinement}") };
        assert!(abi >= REFER_SINCE);
        assert_eq!(tried(&confinement, home.path()), [false, false, false, false, false, true]);
        fs::read(home.path().join("secret")).unwrap();
    }

    #[test]
    fn a_thread_without_a_folder_opens_nothing_and_gains_no_privileges() {
        let confinement = Confinement::of_this_machine();
        let status = |path: &str| fs::read_to_string(path).ok();
        let is_confined = matches!(confinement, Confinement::Landlock(_));
        let (opened, bound) = confinement
            .run(&[], || (status("/etc/passwd").is_some(), TcpListener::bind("127.0.0.1:0").is_ok()))
            .unwrap();
        assert_eq!(opened, !is_confined);
        if matches!(confinement, Confinement::Landlock(4..)) {
            assert!(!bound, "a confined thread listens");
        }
        let set = confinement.run(&[], rustix::thread::no_new_privs).unwrap();
        assert_eq!(set.ok(), Some(true));
        assert_eq!(rustix::thread::no_new_privs().ok(), Some(false), "the process itself keeps what it may do");
    }

    #[test]
    fn what_a_kernel_can_do_decides() {
        assert_eq!(
            Confinement::by(&LandlockStatus::Available { effective_abi: ABI::V6, kernel_abi: Some(9) }),
            Confinement::Landlock(9)
        );
        assert_eq!(
            Confinement::by(&LandlockStatus::Available { effective_abi: ABI::V3, kernel_abi: None }),
            Confinement::Landlock(3)
        );
        for status in [
            LandlockStatus::Available { effective_abi: ABI::V1, kernel_abi: None },
            LandlockStatus::NotEnabled,
            LandlockStatus::NotImplemented,
        ] {
            let reason = Confinement::by(&status).to_string();
            assert!(reason.starts_with("not confined: ") && reason.len() > 30, "{reason}");
        }
    }
}
