/**
 * Calls `take` with each line of a stream that is not empty, and `ended` at its end. Only LF ends a line: `readline` of newer
 * versions of Node also splits at U+2028 and U+2029, which JSON allows inside a text.
 */
export function eachLine(stream, take, ended) {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (chunk) => {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line.trim()) take(line);
  });
  stream.on('end', ended);
}
