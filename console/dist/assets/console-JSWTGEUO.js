import{L as a,O as o,Q as t,S as n,T as p,b as e,o as r,t as i,xa as d}from"./chunk-3EWIDSY5.js";t();r();o();n();var l=document.getElementById("app");l&&e(p(d,{}),l);i().then(a);
