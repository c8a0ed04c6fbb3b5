//! The terminal of `top`: its own screen without a cursor, keys as they are pressed, and all of it given back at the end.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    sync::Arc,
};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio_util::sync::CancellationToken;

const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// To the first place; each line is cleared to its end, and what follows the last.
const HOME: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_BELOW: &str = "\u{1b}[J";
/// What an unknown terminal has.
const SIZE_DEFAULT: (usize, usize) = (80, 24);

/// Ctrl-C, which is a key here.
const INTERRUPT: u8 = 3;

/// The controlling terminal while `top` has it.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) tty: Arc<File>,
    before: Termios,
    /// A key that ends `top` was pressed: `q` or Ctrl-C.
    pub(super) quit: CancellationToken,
    closed: CancellationToken,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let tty = Arc::new(File::options().read(true).write(true).open("/dev/tty")?);
        let before = tcgetattr(&tty)?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        // A read ends after a tenth of a second without a key, so that its thread can end.
        keys.special_codes[SpecialCodeIndex::VMIN] = 0;
        keys.special_codes[SpecialCodeIndex::VTIME] = 1;
        tcsetattr(&tty, OptionalActions::Flush, &keys)?;
        let terminal = Self { tty, before, quit: CancellationToken::new(), closed: CancellationToken::new() };
        let (tty, quit, closed) = (Arc::clone(&terminal.tty), terminal.quit.clone(), terminal.closed.clone());
        std::thread::Builder::new().name("keys".into()).spawn(move || read_keys(&tty, &quit, &closed))?;
        write(ENTER)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.closed.cancel();
        drop(write(LEAVE));
        let _ = tcsetattr(&self.tty, OptionalActions::Flush, &self.before);
    }
}

pub(super) fn draw(lines: &[String]) -> io::Result<()> {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}{CLEAR_LINE}")).collect();
    write(&format!("{HOME}{}{CLEAR_BELOW}", lines.join("\r\n")))
}

fn read_keys(mut tty: &File, quit: &CancellationToken, closed: &CancellationToken) {
    let mut keys = [0_u8; 64];
    while !closed.is_cancelled() {
        match tty.read(&mut keys) {
            Ok(count) if !keys[..count].iter().any(|key| matches!(*key, b'q' | b'Q' | INTERRUPT)) => {}
            // A terminal that cannot be read is gone.
            Ok(_) | Err(_) => return quit.cancel(),
        }
    }
}

/// Columns and lines of a terminal.
pub(super) fn size_of(terminal: impl std::os::fd::AsFd) -> (usize, usize) {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => SIZE_DEFAULT,
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
