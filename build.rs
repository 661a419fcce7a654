//! Embeds the built console: compresses the files of `console/dist` and generates their table, for
//! `src/api/console/files.rs`. The same files always give the same table.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, GzBuilder};

/// Folder of the built page.
const DIST: &str = "console/dist";

/// Content types of the files that a page loads, by the ends of their names.
const KINDS: [(&str, &str); 7] = [
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("woff2", "font/woff2"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DIST}");
    let dist = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(DIST);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let index = embed(&out, &dist.join("index.html"), "index.html", "text/html; charset=utf-8")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(dist.join("assets"))? {
        let name = entry?.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
        names.push(name);
    }
    names.sort_unstable();
    let mut table = format!("const INDEX: EmbeddedFile = {index};\n\nconst ASSETS: &[EmbeddedFile] = &[\n");
    for name in names {
        let kind =
            kind(&name).ok_or_else(|| format!("{DIST}/assets/{name}: a page can't load such a file"))?;
        writeln!(table, "    {},", embed(&out, &dist.join("assets").join(&name), &name, kind)?)?;
    }
    table += "];\n";
    fs::write(out.join("console.rs"), table)?;
    Ok(())
}

/// Returns the content type of an asset; `None` if a URL can't name it, or no page loads such a file.
fn kind(name: &str) -> Option<&'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let (_, end) = name.rsplit_once('.').filter(|_| name.bytes().all(is_plain))?;
    KINDS.iter().find(|(known, _)| *known == end).map(|(_, kind)| *kind)
}

/// Compresses a file, and returns its entry in the table.
fn embed(out: &Path, file: &Path, name: &str, kind: &str) -> Result<String, Box<dyn Error>> {
    let content = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    // Without a time in its header, the result depends on the content alone.
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(&content)?;
    let packed = out.join(format!("{name}.gz"));
    fs::write(&packed, encoder.finish()?)?;
    let packed = packed.to_str().ok_or("the build directory is not UTF-8")?;
    Ok(format!("EmbeddedFile {{ name: {name:?}, kind: {kind:?}, gzip: include_bytes!({packed:?}) }}"))
}
