import{S as a,Sa as d,V as o,X as t,Z as n,_ as p,b as e,o as r,t as i}from"./chunk-37TC3OTL.js";t();r();o();n();var l=document.getElementById("app");l&&e(p(d,{}),l);i().then(a);
