//! Files and directories closed to other accounts of the machine: data directory, exports and files with secrets.

use std::{
    fmt::Display,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _},
    os::unix::fs::{
        DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, fcntl_setfl},
    process::{geteuid, umask},
};
use rustls::pki_types::pem;

/// Permissions of the group and of all others.
const NOT_OWNER: u32 = 0o077;
/// Permissions of accounts that are neither the owner nor in the group.
const OTHERS: u32 = 0o007;
/// Permission to write, of the group and of all others.
const WRITABLE: u32 = 0o022;
/// Sticky bit, set on directories that several accounts share, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Longest file that is read as a whole, such as a configuration, a key or the certificates of authorities.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Error, with its cure, for a directory whose mode can't be changed.
const MODE_UNCHANGEABLE: &str = "other accounts may enter it, and its file system does not support changing that: mount it \
                              with `uid=` of the node's account and `umask=077` (vfat, exfat, ntfs) or \
                              `dir_mode=0700,file_mode=0600` (CIFS), or name a directory on another file system";

/// Closes every file and directory that this process and its children create from now on to other accounts.
pub fn close_new_files() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Returns options to write a file, created with mode 600.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Returns whether only its owner may read or write a file. Some file systems ignore the mode given at creation.
///
/// # Errors
/// The file has no metadata.
pub fn is_closed(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.mode() & NOT_OWNER == 0)
}

/// Creates a directory and its missing parents with mode 700. An existing directory is left unchanged.
///
/// # Errors
/// The directory can't be created.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a data directory with mode 700, or closes an existing one. Returns whether it was open to other accounts.
///
/// # Errors
/// The directory can't be created, or is open to other accounts and can't safely be closed; the text names the cure.
pub fn enter(path: &Path) -> io::Result<bool> {
    create_dir_all(path).map_err(uncreatable)?;
    let directory = File::open(path).map_err(uncreatable)?;
    let about = directory.metadata()?;
    let found = DirectoryState {
        mode: about.mode(),
        owner: about.uid(),
        me: geteuid().as_raw(),
        is_shared: is_shared(path)?,
    };
    match found.verdict() {
        Ok(None) => Ok(false),
        Ok(Some(mode)) => {
            // Some file systems refuse to change a mode, others ignore the change.
            let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
            let changed = directory.set_permissions(Permissions::from_mode(mode));
            changed.map_err(|error| refused(format!("{MODE_UNCHANGEABLE} ({error})")))?;
            if directory.metadata()?.mode() & NOT_OWNER != 0 {
                return Err(refused(MODE_UNCHANGEABLE.to_owned()));
            }
            // Checked after closing, so that no other account can add files meanwhile. On an error the old mode is
            // restored, so that the next start detects it too.
            close_below(path, found.mode & WRITABLE != 0, found.me).inspect_err(|_| {
                drop(directory.set_permissions(Permissions::from_mode(found.mode & 0o7777)))
            })?;
            Ok(true)
        }
        Err(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
    }
}

/// Closes the contents of a directory, recursively.
///
/// If other accounts could write to it, each entry must belong to this account or root and must not be a link: the node
/// would write through a link that another account made.
fn close_below(directory: &Path, was_writable: bool, me: u32) -> io::Result<()> {
    for entry in directory.read_dir()? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        if was_writable && (about.is_symlink() || ![me, 0].contains(&about.uid())) {
            let why = format!(
                "other accounts could write to it, and may have made {}: remove that, or `chown` it to uid {me}",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        if about.is_symlink() || about.uid() != me {
            continue;
        }
        if about.mode() & NOT_OWNER != 0 {
            let closed = Permissions::from_mode(about.mode() & 0o7777 & !NOT_OWNER);
            let at = |error: io::Error| {
                let why =
                    format!("the mode of {} can't be changed: {error}; `chmod` it by hand", path.display());
                io::Error::new(error.kind(), why)
            };
            fs::set_permissions(&path, closed).map_err(at)?;
        }
        if about.is_dir() {
            close_below(&path, was_writable, me)?;
        }
    }
    Ok(())
}

/// Owner and mode of a directory to be used as a data directory.
struct DirectoryState {
    mode: u32,
    owner: u32,
    me: u32,
    /// Whether it contains directories that no node creates.
    is_shared: bool,
}

impl DirectoryState {
    /// Returns the mode to set, if any, or why the directory can't be used.
    fn verdict(&self) -> Result<Option<u32>, String> {
        let (owner, me) = (self.owner, self.me);
        if owner != me && owner != 0 {
            return Err(format!(
                "it belongs to another account (uid {owner}), which could put a key or messages of its own there; name a directory \
                 that the node creates, or `chown` it to uid {me}"
            ));
        }
        if self.mode & NOT_OWNER == 0 {
            return Ok(None);
        }
        if owner != me {
            // Group access is deliberate, as for key files: Kubernetes volumes use it (`fsGroup`).
            return if self.mode & OTHERS == 0 {
                Ok(None)
            } else {
                Err(format!(
                    "it belongs to another account (uid {owner}) and all accounts may enter it; name a directory below it, which the \
                     node creates with mode 700, or `chown` it to uid {me}"
                ))
            };
        }
        // Closing a home directory or /srv would break more than it protects.
        if self.mode & STICKY != 0 || self.is_shared {
            return Err("other accounts may enter it, and it contains more than a node's data; name a directory for the node alone, \
                        or close this one with `chmod 700`"
                .to_owned());
        }
        Ok(Some(self.mode & 0o7777 & !NOT_OWNER))
    }
}

/// Directories that a node or a file system creates in a data directory.
const EXPECTED_DIRECTORIES: [&str; 5] = ["store", "store.import", "lost+found", ".snapshot", ".zfs"];

/// Returns whether there are directories that neither a node nor `tidegate up` creates.
fn is_shared(path: &Path) -> io::Result<bool> {
    for entry in path.read_dir()? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_member = name.strip_prefix('n').is_some_and(|nth| nth.parse::<u16>().is_ok());
        if !is_member && !EXPECTED_DIRECTORIES.contains(&name.as_ref()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the error about a file of a setting, in the form of all: setting, file, reason with its cure.
pub fn unusable(setting: &str, file: &Path, why: impl Display) -> String {
    format!("{setting}: {} can't be used: {why}", file.display())
}

/// Refuses a pipe, for files that are read more than once: the second read of one is empty.
///
/// # Errors
/// The file is a pipe; the text names the cure.
pub fn refuse_pipe(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(about) if about.file_type().is_fifo() => {
            Err(io::Error::other("it is a pipe, which can be read only once; name a file"))
        }
        _ => Ok(()),
    }
}

/// Reads a file with a secret. Group read access is allowed, as in containers (mode 440 and `fsGroup`).
///
/// # Errors
/// The file can't be read, or every account may read it, or its group may write it; the text names the cure.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_at_once(path)?;
    check_secret(&file)?;
    read_all(file)
}

/// Reads a file without secrets, such as a certificate.
///
/// # Errors
/// The file can't be read; the text names the cure.
pub fn read_public(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_at_once(path)?)
}

/// Opens a file for reading.
///
/// # Errors
/// The file can't be read; the text names the cure, but neither the file nor its setting, which the caller adds.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path)
}

/// Opens a file as [`open`] does, except that a pipe without a writer is empty: a reload must not wait for one.
fn open_at_once(path: &Path) -> io::Result<File> {
    let file = open_with(File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32), path)?;
    // A writer that exists is waited for.
    fcntl_setfl(&file, OFlags::empty()).map_err(|error| unreadable(error.into()))?;
    Ok(file)
}

fn open_with(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    Ok(file)
}

fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let why = format!("it has more than {FILE_BYTES_MAX} bytes; is it the right file?");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Adds the cure to an error of reading a file.
fn unreadable(error: io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "no such file; create it, or name another one".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory; name a file in it".to_owned(),
        io::ErrorKind::NotADirectory => "its path leads through a file; name another one".to_owned(),
        io::ErrorKind::PermissionDenied => format!(
            "this account (uid {}) may not read it; `chown` or `chmod` it, or the directories above it",
            geteuid().as_raw()
        ),
        _ => format!("{error}; name a file on a disk that works"),
    };
    io::Error::new(error.kind(), why)
}

/// Adds the cure to an error of creating or entering a directory.
fn uncreatable(error: io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "a file has that name; remove it, or name a directory that does not exist yet".to_owned()
        }
        io::ErrorKind::NotADirectory => "its path leads through a file; name another directory".to_owned(),
        _ => format!("{error}; name a directory that this account (uid {}) may create", geteuid().as_raw()),
    };
    io::Error::new(error.kind(), why)
}

/// Returns why PEM can't be used, without its content: the error's own text quotes lines, and a key whose line breaks were
/// lost is one line.
pub fn pem_problem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "a section has no end; BEGIN, content and END are lines of their own".to_owned()
        }
        pem::Error::IllegalSectionStart { .. } => "the line that begins a section is malformed".to_owned(),
        pem::Error::Base64Decode(_) => "the content of a section is not base64".to_owned(),
        other => other.to_string(),
    }
}

/// Checks the permissions of a file with a secret that other code reads.
///
/// # Errors
/// See [`read`].
pub fn check(path: &Path) -> io::Result<()> {
    check_secret(&open_at_once(path)?)
}

fn check_secret(file: &File) -> io::Result<()> {
    if file.metadata()?.mode() & (OTHERS | WRITABLE) == 0 {
        return Ok(());
    }
    let why = "every account of this machine may read it, or its group may write it: `chmod 600` it, or have it mounted with mode 0440 \
               and the group of the node";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};

    use super::*;

    fn temp_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tidegate-private-{name}-{}", std::process::id()))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn data_directories_are_created_closed_and_open_ones_are_closed() {
        let data = temp_path("data").join("a/b");
        assert!(!enter(&data).unwrap());
        assert_eq!((mode(&data), mode(data.parent().unwrap())), (0o700, 0o700));
        for name in ["store", "n1", "n16"] {
            fs::create_dir(data.join(name)).unwrap();
        }
        for open in [0o755, 0o750, 0o777, 0o701] {
            chmod(&data, open);
            assert!(enter(&data).unwrap());
            assert_eq!(mode(&data), 0o700, "{open:o}");
            assert!(!enter(&data).unwrap());
        }
        fs::remove_dir_all(temp_path("data")).unwrap();
    }

    #[test]
    fn files_possibly_planted_by_other_accounts_are_refused() {
        let data = temp_path("planted");
        fs::create_dir_all(data.join("store")).unwrap();
        fs::write(data.join("store/old"), "readable").unwrap();
        chmod(&data.join("store/old"), 0o644);
        chmod(&data, 0o755);
        std::os::unix::fs::symlink("/etc/hostname", data.join("link")).unwrap();
        assert!(enter(&data).unwrap(), "no other account could have made that link");
        assert_eq!((mode(&data.join("store")), mode(&data.join("store/old"))), (0o700, 0o600));
        chmod(&data, 0o775);
        for _ in 0..2 {
            let why = enter(&data).unwrap_err().to_string();
            assert!(why.contains("planted") && why.contains("link"), "{why}");
            assert_eq!(mode(&data), 0o775, "refused at the next start, too");
        }
        fs::remove_file(data.join("link")).unwrap();
        assert!(enter(&data).unwrap());
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn directories_with_foreign_contents_are_left_unchanged() {
        let home = temp_path("home");
        fs::create_dir_all(home.join(".snapshot")).unwrap();
        chmod(&home, 0o755);
        assert!(enter(&home).unwrap(), ".snapshot belongs to the file system");
        fs::create_dir_all(home.join(".config")).unwrap();
        chmod(&home, 0o755);
        assert!(enter(&home).is_err(), "a home directory");
        fs::remove_dir(home.join(".config")).unwrap();
        fs::create_dir_all(home.join("public_html")).unwrap();
        let why = enter(&home).unwrap_err().to_string();
        assert!(why.contains("`chmod 700`"), "{why}");
        assert_eq!(mode(&home), 0o755);
        chmod(&home, 0o700);
        assert!(!enter(&home).unwrap(), "its owner has closed it");
        fs::remove_dir(home.join("public_html")).unwrap();
        chmod(&home, 0o1777);
        assert!(enter(&home).is_err(), "as /tmp is");
        fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn directories_of_other_accounts_need_group_only_access() {
        let of_another = DirectoryState { mode: 0o40_700, owner: 1_000, me: 10_001, is_shared: false };
        assert!(
            of_another.verdict().unwrap_err().contains("uid 1000"),
            "its owner could have put a key there"
        );
        let of_another = DirectoryState { me: 0, ..of_another };
        assert!(of_another.verdict().is_err(), "root could read it, but must not trust it");
        let verdict = |mode| DirectoryState { mode, owner: 0, me: 10_001, is_shared: false }.verdict();
        assert_eq!([verdict(0o40_700), verdict(0o42_770)], [Ok(None), Ok(None)]);
        for open in [0o42_777, 0o40_775, 0o40_701] {
            let why = verdict(open).unwrap_err();
            assert!(why.contains("uid 0") && why.contains("`chown` it to uid 10001"), "{open:o}: {why}");
        }
    }

    #[test]
    fn endless_files_and_pipes_without_a_writer_end_a_read() {
        let why = read_public(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(why.contains("more than 16777216 bytes"), "{why}");
        let pipe = temp_path("pipe");
        let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap();
        assert!(made.success());
        assert_eq!(read(&pipe).unwrap(), b"");
        check(&pipe).unwrap();
        fs::remove_file(pipe).unwrap();
    }

    #[test]
    fn problems_of_pem_quote_no_content() {
        let one_line = "-----BEGIN PRIVATE KEY----- c2VjcmV0 -----END PRIVATE KEY-----\n";
        let cut = "-----BEGIN PRIVATE KEY----- c2VjcmV0\n";
        for text in [one_line, cut] {
            let error = PrivateKeyDer::from_pem_slice(text.as_bytes()).unwrap_err();
            let content = "99, 50, 86, 106, 99, 109, 86, 48";
            assert!(error.to_string().contains(content), "precondition: the library quotes it: {error}");
            let why = pem_problem(&error);
            assert!(!why.contains(content) && !why.contains("c2VjcmV0"), "{why}");
        }
    }

    #[test]
    fn secrets_readable_by_every_account_are_refused() {
        let file = temp_path("secret");
        fs::write(&file, "secret").unwrap();
        for closed in [0o600, 0o400, 0o440, 0o640] {
            chmod(&file, closed);
            assert_eq!(read(&file).unwrap(), b"secret", "{closed:o}");
            check(&file).unwrap();
        }
        for open in [0o644, 0o604, 0o602, 0o601, 0o660] {
            chmod(&file, open);
            let why = read(&file).unwrap_err().to_string();
            assert!(why.contains("`chmod 600`") && check(&file).is_err(), "{open:o}: {why}");
        }
        fs::remove_file(file).unwrap();
    }
}
